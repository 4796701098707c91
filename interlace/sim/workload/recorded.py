"""Recorded arrivals: counts by minute, the very times, or windows of the same rate and spread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from interlace.sim.arrivals import Times
from interlace.sim.workload.renewal import Gamma


@dataclass(frozen=True, slots=True)
class BinnedCounts:
    """Invocations per bin of ``bin_s`` seconds, Poisson inside a bin: the trace says no more.

    ``scale`` multiplies every count (fractions are rounded at random, so that the mean holds),
    ``speed`` plays the trace that many times faster. Nothing arrives after its end.
    """

    counts: tuple[int, ...]
    bin_s: float = 60.0
    scale: float = 1.0
    speed: float = 1.0

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        length_ms = self.bin_s / self.speed * 1000.0
        bins = int(np.ceil(seconds * 1000.0 / length_ms))
        wanted = np.array(self.counts[:bins], dtype=float) * self.scale
        drawn = np.floor(wanted + random.uniform(0.0, 1.0, len(wanted))).astype(int)
        starts = np.repeat(np.arange(len(drawn)) * length_ms, drawn)
        times: Times = np.sort(starts + random.uniform(0.0, length_ms, int(drawn.sum())))
        return times[times < seconds * 1000.0]


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedTrace:
    """These very times, in ms, played ``speed`` times faster."""

    times_ms: Times
    speed: float = 1.0

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        times = np.sort(self.times_ms) / self.speed
        kept: Times = times[(times >= 0.0) & (times < seconds * 1000.0)]
        return kept


@dataclass(frozen=True, slots=True)
class RefittedGamma:
    """Gamma gaps window after window: (rate in rps, coefficient of variation) of each."""

    windows: tuple[tuple[float, float], ...]
    window_s: float

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        pieces: list[Times] = [np.empty(0)]
        for index, (rate_rps, cv) in enumerate(self.windows):
            if index * self.window_s >= seconds:
                break
            inside = Gamma(rate_rps, cv)(self.window_s, random)
            pieces.append(inside + index * self.window_s * 1000.0)
        times = np.concatenate(pieces)
        return times[times < seconds * 1000.0]
