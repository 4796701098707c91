"""Goodput of one system over another's, with the interval that so few trials leave open."""

from __future__ import annotations

from math import inf, sqrt
from typing import Final, NamedTuple

from bench.gpu.search import Search, Trial

#: Of a normal distribution: 95 % lie within so many deviations.
_Z: Final = 1.96


class Ratio(NamedTuple):
    """One over another, and between what it lies."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def reached(one: Search, other: Search) -> Ratio:
    """Of the highest loads kept: each lies between what was kept and what was not."""
    (low, high), (other_low, other_high) = one.reach_rps, other.reach_rps
    return Ratio(_over(low, other_low), _over(low, other_high), _over(high, other_low))


def at_one_load(one: Trial, other: Trial) -> Ratio:
    """Of the requests in time at the same offered load: 95 %, as if each were drawn alone."""
    (low, high), (other_low, other_high) = in_time(one), in_time(other)
    return Ratio(
        _over(one.goodput_rps, other.goodput_rps), _over(low, other_high), _over(high, other_low)
    )


def in_time(one: Trial) -> tuple[float, float]:
    """Requests in time per second, with 95 %: the interval of Wilson for a part of those sent."""
    if not one.sent:
        return 0.0, 0.0
    n, part = one.sent, min(1.0, one.goodput_rps / one.offered_rps)
    middle = (part + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * sqrt(part * (1 - part) / n + _Z**2 / (4 * n**2))
    return (middle - half) * one.offered_rps, (middle + half) * one.offered_rps


def _over(one: float, other: float) -> float:
    if other > 0:
        return one / other
    return inf if one > 0 else 1.0
