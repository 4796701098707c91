"""The part of a slowdown that any two profiles tell: ridge over lengths, pressures and shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np
import numpy.typing as npt

from interlace.perf.interference import CoRunner
from interlace.perf.slowdown.observation import Observation, Pressure, Solos

Floats = npt.NDArray[np.float64]

#: Penalties that are tried; the last leaves a constant.
_PENALTIES: Final = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 1e9)
#: Added to pressures before their ratio.
_LITTLE: Final = 0.01
_WIDTH: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class RidgeBase:
    """Excess = ``level`` + ``weights`` * features, for each neighbour: holds for any models."""

    level: float
    weights: Floats
    centre: Floats
    scale: Floats

    def excess(self, features: Floats) -> Floats:
        """Slowdown beyond 1 by one neighbour; ``features`` has one row for each."""
        found: Floats = self.level + (features - self.centre) / self.scale @ self.weights
        return found


class ObservationTable:
    """Observations as arrays: features of each neighbour, and whose row they belong to."""

    def __init__(self, seen: Sequence[Observation], solos: Solos) -> None:
        beside = [(i, one.runner, n) for i, one in enumerate(seen) for n in one.neighbours]
        self.owner = np.array([i for i, _, _ in beside], int)
        self.features = np.array([features(r, n, solos) for _, r, n in beside]).reshape(-1, _WIDTH)
        self.excess = np.array([one.slowdown - 1.0 for one in seen])
        self.groups = [one.models for one in seen]

    def fit(self, kept: npt.NDArray[np.bool_], penalty: float) -> RidgeBase:
        """Ridge on the kept observations; the level is not penalised."""
        mine = kept[self.owner]
        chosen = self.features[mine]
        if not len(chosen):
            return RidgeBase(0.0, np.zeros(_WIDTH), np.zeros(_WIDTH), np.ones(_WIDTH))
        centre, scale = chosen.mean(axis=0), chosen.std(axis=0) + 1e-9
        design = np.zeros((len(self.excess), 1 + _WIDTH))
        columns = np.column_stack([np.ones(len(chosen)), (chosen - centre) / scale])
        np.add.at(design, self.owner[mine], columns)
        weight = np.diag([0.0, *[penalty] * _WIDTH]) * kept.sum()
        found = np.linalg.solve(design.T @ design + weight, design.T @ (self.excess * kept))
        return RidgeBase(float(found[0]), found[1:], centre, scale)

    def predicted(self, base: RidgeBase) -> Floats:
        """The base's excess for every observation."""
        total = np.zeros(len(self.excess))
        np.add.at(total, self.owner, base.excess(self.features))
        return total

    def best_penalty(self) -> float:
        """The penalty of least squared error on groups of models that were left out."""
        groups = sorted(set(self.groups), key=sorted)
        if len(groups) < 2:
            return _PENALTIES[-1]
        errors = dict.fromkeys(_PENALTIES, 0.0)
        for group in groups:
            out = np.array([one == group for one in self.groups])
            for penalty in _PENALTIES:
                missed = self.predicted(self.fit(~out, penalty))[out] - self.excess[out]
                errors[penalty] += float((missed**2).sum())
        return min(_PENALTIES, key=lambda penalty: (errors[penalty], -penalty))


def features(runner: CoRunner, neighbour: CoRunner, solos: Solos) -> tuple[float, ...]:
    """How short the runner is beside the neighbour, how hungry, and how even their shares are."""
    own, other = solos(runner), solos(neighbour)
    shorter = min(1.0, other.alone_ms / own.alone_ms)
    l2, dram = _ratios(own.pressure, other.pressure)
    part = runner.share_pct / (runner.share_pct + neighbour.share_pct)
    return shorter, l2, dram, (part - 0.5) ** 2


def _ratios(own: Pressure | None, other: Pressure | None) -> Pressure:
    """Logarithms of the ratios of L2 and of DRAM; 0, as of equals, unless both were measured."""
    if own is None or other is None:
        return 0.0, 0.0
    l2, dram = (log((o + _LITTLE) / (n + _LITTLE)) for o, n in zip(own, other, strict=True))
    return l2, dram
