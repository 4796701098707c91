"""Baselines of learned slowdowns: one constant, and gpulet's linear model (section 4.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from interlace.perf.interference import ConstantFactor, CoRunner
from interlace.perf.slowdown.observation import Observation, Solos

_NONE: Final = (0.0, 0.0)
Coefficients = tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class LinearInterference:
    """factor = c1 l2 + c2 l2' + c3 dram + c4 dram' + c5, at least 1; primes for the neighbour's.

    The paper has one neighbour; of several, which use the same caches and memory, it is the sum.
    """

    coefficients: Coefficients
    solos: Solos

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        if not neighbours:
            return 1.0
        terms = _terms(runner, neighbours, self.solos)
        return max(1.0, sum(c * t for c, t in zip(self.coefficients, terms, strict=True)))


def fit_linear(seen: Sequence[Observation], solos: Solos) -> LinearInterference:
    """The coefficients of least squares over what was seen.

    Raises:
        ValueError: fewer observations than coefficients.
    """
    if len(seen) < 5:
        raise ValueError(f"5 coefficients cannot be fitted to {len(seen)} observations: see more")
    terms = np.array([_terms(one.runner, one.neighbours, solos) for one in seen])
    found, *_ = np.linalg.lstsq(terms, np.array([one.slowdown for one in seen]), rcond=None)
    c1, c2, c3, c4, c5 = (float(c) for c in found)
    return LinearInterference((c1, c2, c3, c4, c5), solos)


def _terms(runner: CoRunner, neighbours: Sequence[CoRunner], solos: Solos) -> Coefficients:
    l2, dram = solos(runner).pressure or _NONE
    others = [solos(one).pressure or _NONE for one in neighbours]
    return l2, sum(l2 for l2, _ in others), dram, sum(dram for _, dram in others), 1.0


def fit_constant(seen: Sequence[Observation]) -> ConstantFactor:
    """The mean slowdown: the baseline that finer models must beat; 1 without observations."""
    if not seen:
        return ConstantFactor(1.0)
    return ConstantFactor(max(1.0, sum(one.slowdown for one in seen) / len(seen)))
