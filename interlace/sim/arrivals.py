"""When requests arrive: the one form that every workload ends in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

Times = NDArray[np.float64]
_MOST = 1e12
Rate = Annotated[float, Meta(ge=0, le=_MOST)]
Positive = Annotated[float, Meta(gt=0, le=_MOST)]


class Workload(Protocol):
    """One model's arrivals: times in ms, ascending, in [0, ``seconds`` * 1000)."""

    def __call__(self, seconds: float, random: np.random.Generator) -> Times: ...


class WorkloadTable(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A kind of workload by the keys that a scenario file has beside ``kind``.

    Keys:
        rate_rps: mean rate. Without it, the model's rate.
        cv: coefficient of variation of the gaps. Without it, the model's.
        steps: times in seconds with the rate from then on.
        low_rps: lowest rate, at the start.
        high_rps: highest rate.
        period_s: length of a day.
        states: rates with the mean time at each in seconds, taken in turn.
        rates_rps: rates taken in turn.
        every: number of requests at each rate.
        random_gaps: exponential gaps instead of even ones.
        file: file of the trace, beside the scenario.
        function: one function of the trace. Without it and part, the first.
        part: one of equal parts of all functions, such as "2/9".
        speed: factor on the speed of the trace.
        total_rps: mean rate of all parts together, instead of rate_rps.
        skip: number of the busiest functions to leave out.
        drawn: number of functions to draw at random, each from a random minute.
        window_s: draw gaps anew in windows of this length.
        rate_scale: factor on the rate, with window_s.
        cv_scale: factor on the variation, with window_s.
        model: name in the file. Without it, the model's name.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests in order of arrival: request ``i`` comes at ``times_ms[i]`` for model ``which[i]``.

    ``which`` are indices into ``models``. Times are ms from the start of the measured run.
    """

    models: tuple[str, ...]
    times_ms: Times
    which: NDArray[np.int32]
    seconds: float

    def __len__(self) -> int:
        return len(self.times_ms)

    def of(self, model: str) -> Times:
        """One model's times."""
        times: Times = self.times_ms[self.which == self.models.index(model)]
        return times


def merge_arrivals(workloads: Mapping[str, Workload], seconds: float, seed: int) -> Arrivals:
    """Every model's arrivals in one sequence; the same for equal workloads, seconds and seed.

    Each model draws from a stream of its own, so one model's workload never moves another's.
    """
    streams = np.random.default_rng(seed).spawn(len(workloads))
    each = [one(seconds, random) for one, random in zip(workloads.values(), streams, strict=True)]
    times_ms = np.concatenate([np.empty(0), *each])
    which = np.repeat(np.arange(len(each), dtype=np.int32), [len(times) for times in each])
    order = np.argsort(times_ms, kind="stable")
    return Arrivals(tuple(workloads), times_ms[order], which[order], seconds)


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
