"""A workload from the few words of a scenario file (docs/workloads.md)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import pi
from types import MappingProxyType
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta

from interlace.core.tables import TableError, read_table
from interlace.sim.arrivals import (
    Gamma,
    Positive,
    Rate,
    Steady,
    Times,
    Uniform,
    Workload,
    WorkloadTable,
)
from interlace.sim.workload.traces import ReplayedTrace, TraceFiles, chosen, merged, refitted

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


_Part = Annotated[
    str, Meta(pattern=r"^\d+/\d+$", description='such as "2/9", the second part of nine')
]
_File = Annotated[str, Meta(pattern=r"^[^\x00-\x1f]+$", description="a string, the name of a file")]


class _Poisson(WorkloadTable, frozen=True, tag="poisson"):
    rate_rps: Rate


class _FromFile(WorkloadTable, frozen=True):
    """Arrivals that a file has, for a model of that name, from a folder."""

    file: _File

    @abstractmethod
    def workload(self, name: str, traces: TraceFiles) -> Workload:
        """What the file among ``traces`` has.

        Raises:
            TableError: keys that do not go together, or a name that is not in the file.
        """


class _Recorded(_FromFile, frozen=True):
    """A trace of many functions: one of them, or a part of all."""

    function: str | None = None
    part: _Part | None = None
    speed: Positive = 1.0

    def place(self) -> tuple[int, int]:
        """Which part of how many, from 0."""
        first, of = map(int, (self.part or "1/1").split("/"))
        if not 1 <= first <= of:
            raise TableError("part", repr(self.part), 'such as "2/9", the second part of nine')
        return first - 1, of


class _Azure(_Recorded, frozen=True, kw_only=True, tag="azure"):
    """Counts by minute, folded onto models as DeepPlan does."""

    rate_rps: Rate
    total_rps: Positive | None = None
    skip: Annotated[int, Meta(ge=0)] = 0
    drawn: Annotated[int, Meta(ge=1, le=100_000)] | None = None

    def workload(self, name: str, traces: TraceFiles) -> Workload:
        place, parts = self.place()
        if self.function is not None and (self.skip or self.drawn):
            raise TableError("function", repr(self.function), "none of it beside skip or drawn")
        if self.part is None and not (self.skip or self.drawn):
            mapped = traces.function(self.file, self.function)
        else:
            mapped = traces.folded(self.file, parts, self.skip, self.drawn)[place]
        # Rates are those that are played: at twice the speed, half the rate of the trace makes one.
        if self.total_rps is not None:
            scale = mapped.scale * self.total_rps / self.speed
        else:
            mean_rps = sum(mapped.counts) / (mapped.bin_s * len(mapped.counts))
            scale = self.rate_rps / self.speed / mean_rps if mean_rps else 0.0
        return replace(mapped, scale=scale, speed=self.speed)


class _Azure2021(_Recorded, frozen=True, tag="azure-2021"):
    """Invocations as they were, or as AlpaServe refits them window by window."""

    window_s: Positive | None = None
    rate_scale: Positive = 1.0
    cv_scale: Positive = 1.0

    def workload(self, name: str, traces: TraceFiles) -> Workload:
        times = traces.invocations(self.file)
        if self.part is None:
            path = traces.folder / self.file
            times = {"": times[chosen("function", self.function, times, path)]}
        place, parts = self.place()
        names = [str(index) for index in range(parts)]
        if self.window_s is None:
            return ReplayedTrace(merged(times, names)[names[place]], self.speed)
        fitted = refitted(times, names, self.window_s, self.rate_scale, self.cv_scale)
        return fitted[names[place]]


class _Trace(_FromFile, frozen=True, tag="trace"):
    model: str | None = None
    speed: Positive = 1.0

    def workload(self, name: str, traces: TraceFiles) -> Workload:
        times = traces.own_times(self.file)
        path = traces.folder / self.file
        return ReplayedTrace(times[chosen("model", self.model or name, times, path)], self.speed)


_ANY: Any = (
    _Poisson | Gamma | Uniform | Steady | Steps | Diurnal | Mmpp | Ramp
    | _Azure | _Azure2021 | _Trace
)  # fmt: skip

#: Keys that each kind of workload has beside ``kind``.
KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {str(one.__struct_config__.tag): one.__struct_fields__ for one in _ANY.__args__}
)


def workload(
    table: Mapping[str, object],
    model: str,
    rate_rps: float,
    cv: float,
    traces: TraceFiles,
    where: str = "",
) -> Workload:
    """The workload that a table describes; rate and variation are the model's where not given.

    ``where`` is the table's key in its file, for errors.

    Raises:
        TableError: an unknown kind or key, or a value that is none.
        TraceError: a file that is no trace.
        OSError: a file that cannot be read.
    """
    given: dict[str, object] = {"kind": "gamma", **table}
    planned = {"rate_rps": rate_rps, "cv": cv}
    known = KEYS.get(str(given["kind"]), ())
    given = {key: value for key, value in planned.items() if key in known} | given
    try:
        return _workload(read_table(given, _ANY, where), model, traces)
    except TableError as error:
        raise TableError(f"{where}.{error.key}".lstrip("."), error.found, error.expected) from None


def _workload(found: Any, model: str, traces: TraceFiles) -> Workload:
    """What a table without errors of its own describes.

    Raises:
        TableError: keys that do not go together, or a name that is not in a file.
    """
    match found:
        case _FromFile():
            found = found.workload(model, traces)
        case _Poisson(rate_rps=rate_rps):
            found = Gamma(rate_rps)
        case Steps(steps=steps):
            seconds = [at_s for at_s, _ in steps]
            if seconds != sorted(set(seconds)):
                raise TableError("steps", f"at {seconds}", "ascending seconds")
        case Diurnal(low_rps=low, high_rps=high) if low > high:
            raise TableError("low_rps", f"{low:g}", f"at most high_rps, {high:g}")
    made: Workload = found
    return made
