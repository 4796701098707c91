"""How likely it is that several gaps between arrivals fit into a time."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, lgamma, log
from typing import Final, NamedTuple

import numpy as np

from interlace.packing.bounds.rates import Floats

#: Times, in mean gaps, that probabilities are kept for: each so many times the one before it.
_STEP: Final = 1.01
_SHORTEST: Final = 1e-3
#: Deviations from the mean beyond which a sum of gaps is taken to fit for certain, and below which
#: as often as there, which is below 1e-300.
_CERTAIN: Final = 12.0
_NEVER: Final = 40.0
_PRECISE: Final = 1e-17
_TERMS: Final = 16  #: that are added before it is looked at whether more are needed


class GapSums(NamedTuple):
    """``within[m, t]``: the probability that ``m`` independent gaps take at most the t-th time."""

    within: Floats

    def at_most(self, gaps: Floats, mean_gaps: Floats) -> Floats:
        """An upper bound on P(the sum of ``gaps`` gaps <= ``mean_gaps``), of which each mean is 1.

        Times are rounded up by at most one percent; 0 where a time is below 0.
        """
        steps = np.log(np.maximum(mean_gaps, _SHORTEST) / _SHORTEST) / log(_STEP)
        place = np.minimum(np.ceil(steps - 1e-9).astype(int), self.within.shape[1] - 1)
        found: Floats = np.where(mean_gaps < 0, 0.0, self.within[gaps.astype(int), place])
        return found


@lru_cache(maxsize=8)
def gap_sums(cv: float, gaps: int, mean_gaps: float) -> GapSums:
    """Sums of up to ``gaps`` gaps of Gamma distribution in times up to ``mean_gaps``; then certain.

    m gaps of mean 1 and coefficient of variation cv are one of shape m / cv^2 and scale cv^2; cv 1
    is Poisson's.
    """
    count = max(2, ceil(log(max(mean_gaps, 1.0) / _SHORTEST) / log(_STEP)) + 1)
    times: Floats = _SHORTEST * _STEP ** np.arange(float(count)) / cv**2
    rows = [np.ones(count), *(_below(m / cv**2, times) for m in range(1, gaps + 1))]
    return GapSums(np.column_stack([np.array(rows), np.ones(gaps + 1)]))


def _below(shape: float, times: Floats) -> Floats:
    """P(Gamma(shape, 1) <= time) = x^a exp(-x) / Gamma(a + 1) * sum_n x^n / (a + 1)_n, at least."""
    deviation = 1.0 + shape**0.5
    low, high = shape - _NEVER * deviation, shape + _CERTAIN * deviation
    first, last = np.searchsorted(times, [low, high])
    found, x = np.ones(len(times)), times[first:last]
    term, total, n = np.ones(len(x)), np.ones(len(x)), 0
    while len(x) and (term > _PRECISE * total).any():
        for _ in range(_TERMS):
            n += 1
            term *= x / (shape + n)
            total += term
    front = np.exp(shape * np.log(x) - x - lgamma(shape + 1.0))
    found[first:last] = np.minimum(1.0, front * total * (1.0 + 1e-12))
    found[:first] = found[first] if last > first else 1.0
    return found
