"""Rates that change over time: steps, waves, bursts, states."""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Annotated

import numpy as np
from msgspec import Meta

from interlace.sim.arrivals import Positive, Rate, Times, WorkloadTable

_Count = Annotated[int, Meta(ge=1)]
_STEPS = Meta(min_length=1, description="a list of [second, requests per second], each at least 0")
_STATES = Meta(
    min_length=1, description="a list of [requests per second, mean seconds of a stay above 0]"
)
_RATES = Meta(min_length=1, description="a list of numbers above 0")
_EVERY = Meta(description="a whole number from 1, or a list of them")


def thinned(
    rate_rps: Callable[[Times], Times], highest_rps: float, seconds: float,
    random: np.random.Generator,
) -> Times:  # fmt: skip
    """Poisson arrivals whose rate is a function of the time in s (Lewis and Shedler's thinning)."""
    if highest_rps <= 0:
        return np.empty(0)
    count = random.poisson(highest_rps * seconds)
    times_s = np.sort(random.uniform(0.0, seconds, count))
    kept = random.uniform(0.0, highest_rps, count) < rate_rps(times_s)
    times: Times = times_s[kept] * 1000.0
    return times


class Steps(WorkloadTable, frozen=True, tag="steps"):
    """Poisson at one rate after another: (from that second on, requests per second), ascending.

    Before the first step nothing arrives. gpulet's fluctuating rates (Figure 14) are steps.
    """

    steps: Annotated[tuple[tuple[Rate, Rate], ...], _STEPS]

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        starts = np.array([at_s for at_s, _ in self.steps])
        rates = np.array([0.0, *(rate for _, rate in self.steps)])
        return thinned(
            lambda at_s: rates[np.searchsorted(starts, at_s, side="right")],
            float(rates.max()),
            seconds,
            random,
        )


class Diurnal(WorkloadTable, frozen=True, tag="diurnal"):
    """A day in ``period_s``: Poisson at a rate that swings between two, lowest at the start."""

    low_rps: Rate
    high_rps: Positive
    period_s: Positive

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        middle, swing = (self.low_rps + self.high_rps) / 2, (self.high_rps - self.low_rps) / 2
        return thinned(
            lambda at_s: middle - swing * np.cos(2 * pi * at_s / self.period_s),
            self.high_rps,
            seconds,
            random,
        )


class Mmpp(WorkloadTable, frozen=True, tag="mmpp"):
    """A Markov-modulated Poisson process: (rate in rps, mean stay in s) of states taken in turn.

    Stays are exponential. Two states, a quiet and a busy one, make bursts.
    """

    states: Annotated[tuple[tuple[Rate, Positive], ...], _STATES]

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        pieces: list[Times] = []
        at_s, state = 0.0, 0
        while at_s < seconds:
            rate_rps, stay_s = self.states[state]
            until_s = min(seconds, at_s + random.exponential(stay_s))
            count = random.poisson(rate_rps * (until_s - at_s))
            pieces.append(np.sort(random.uniform(at_s, until_s, count)) * 1000.0)
            at_s, state = until_s, (state + 1) % len(self.states)
        return np.concatenate([np.empty(0), *pieces])


class Ramp(WorkloadTable, frozen=True, tag="ramp"):
    """E2bird's load: one rate after another, each for so many requests, then from the first again.

    Section 3.2 raises the rate every 150 requests; section 8 has 150 at a low and 250 at a high
    rate, which is ``every=(150, 250)``. Gaps are even within a step, or exponential if
    ``random_gaps``.
    """

    rates_rps: Annotated[tuple[Positive, ...], _RATES]
    every: Annotated[_Count | Annotated[tuple[_Count, ...], Meta(min_length=1)], _EVERY] = 150
    random_gaps: bool = False

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        pieces: list[Times] = [np.empty(0)]
        counts = (self.every,) if isinstance(self.every, int) else self.every
        at_ms, turn = 0.0, 0
        while at_ms < seconds * 1000.0:
            count = counts[turn % len(counts)]
            gap_ms = 1000.0 / self.rates_rps[turn % len(self.rates_rps)]
            gaps = np.full(count, gap_ms)
            if self.random_gaps:
                gaps = random.exponential(gap_ms, count)
            piece = at_ms + np.cumsum(gaps)
            pieces.append(piece)
            at_ms, turn = float(piece[-1]), turn + 1
        times = np.concatenate(pieces)
        return times[times < seconds * 1000.0]
