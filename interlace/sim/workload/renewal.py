"""Independent gaps between arrivals: Poisson, Gamma, uniform, steady."""

from __future__ import annotations

import numpy as np

from interlace.sim.arrivals import Positive, Rate, Times, WorkloadTable


class Gamma(WorkloadTable, frozen=True, tag="gamma"):
    """Gaps of a gamma distribution with this rate and coefficient of variation; 1 is Poisson."""

    rate_rps: Rate
    cv: Positive = 1.0

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        if self.rate_rps <= 0:
            return np.empty(0)
        shape = 1.0 / self.cv**2
        mean_ms = 1000.0 / self.rate_rps
        expected = self.rate_rps * seconds
        count = int(expected + 10.0 * self.cv * np.sqrt(expected) + 50.0)
        times = np.cumsum(random.gamma(shape, mean_ms / shape, count))
        while times[-1] < seconds * 1000.0:
            more = np.cumsum(random.gamma(shape, mean_ms / shape, count))
            times = np.concatenate([times, times[-1] + more])
        return times[times < seconds * 1000.0]


def poisson(rate_rps: float) -> Gamma:
    """Memoryless arrivals."""
    return Gamma(rate_rps)


class Uniform(WorkloadTable, frozen=True, tag="uniform"):
    """Gaps drawn evenly from 0 to twice the mean: D-STACK's "random, uniformly distributed
    inter-arrival delay" (section 6.3)."""

    rate_rps: Rate

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        if self.rate_rps <= 0:
            return np.empty(0)
        mean_ms = 1000.0 / self.rate_rps
        count = int(self.rate_rps * seconds * 1.2 + 10 * np.sqrt(self.rate_rps * seconds) + 50)
        times: Times = np.cumsum(random.uniform(0.0, 2.0 * mean_ms, count))
        return times[times < seconds * 1000.0]


class Steady(WorkloadTable, frozen=True, tag="steady"):
    """Gaps all alike, as a camera's; the first arrival falls anywhere in the first gap."""

    rate_rps: Rate

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        if self.rate_rps <= 0:
            return np.empty(0)
        gap_ms = 1000.0 / self.rate_rps
        first_ms = random.uniform(0.0, gap_ms)
        return np.arange(first_ms, seconds * 1000.0, gap_ms)
