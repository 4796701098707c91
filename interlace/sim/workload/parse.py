"""A workload from the few words of a scenario file (docs/workloads.md)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta, Struct

from interlace.core.tables import TableError, read_table
from interlace.sim.arrivals import Workload
from interlace.sim.workload.mapping import merged, refitted
from interlace.sim.workload.recorded import ReplayedTrace
from interlace.sim.workload.renewal import Gamma
from interlace.sim.workload.spacing import Steady, Uniform
from interlace.sim.workload.traces import TraceFiles, chosen
from interlace.sim.workload.varying import Diurnal, Mmpp, Ramp, Steps

_MOST = 1e12
_Rate = Annotated[float, Meta(ge=0, le=_MOST)]
_Positive = Annotated[float, Meta(gt=0, le=_MOST)]
_Count = Annotated[int, Meta(ge=1)]
_Part = Annotated[
    str, Meta(pattern=r"^\d+/\d+$", description='such as "2/9", the second part of nine')
]
_File = Annotated[str, Meta(pattern=r"^[^\x00-\x1f]+$", description="a string, the name of a file")]
_STEPS = Meta(min_length=1, description="a list of [second, requests per second], each at least 0")
_STATES = Meta(
    min_length=1, description="a list of [requests per second, mean seconds of a stay above 0]"
)
_RATES = Meta(min_length=1, description="a list of numbers above 0")
_EVERY = Meta(description="a whole number from 1, or a list of them")


class _Model(NamedTuple):
    """Whose arrivals they are: name, planned rate (requests/s) and variation, the traces."""

    name: str
    rate_rps: float
    cv: float
    traces: TraceFiles


class WorkloadTable(Struct, forbid_unknown_fields=True, tag_field="kind"):
    """The keys of one kind of workload beside ``kind``."""

    @abstractmethod
    def workload(self, model: _Model) -> Workload:
        """What the table describes; where it says nothing, what the model is planned for.

        Raises:
            TableError: keys that do not go together, or a name that is not in a file.
        """


class _OfRate(WorkloadTable):
    rate_rps: _Rate | None = None

    def rate(self, model: _Model) -> float:
        return model.rate_rps if self.rate_rps is None else self.rate_rps


class _Poisson(_OfRate, tag="poisson"):
    def workload(self, model: _Model) -> Workload:
        return Gamma(self.rate(model))


class _Gamma(_OfRate, tag="gamma"):
    cv: _Positive | None = None

    def workload(self, model: _Model) -> Workload:
        return Gamma(self.rate(model), model.cv if self.cv is None else self.cv)


class _Uniform(_OfRate, tag="uniform"):
    def workload(self, model: _Model) -> Workload:
        return Uniform(self.rate(model))


class _Steady(_OfRate, tag="steady"):
    def workload(self, model: _Model) -> Workload:
        return Steady(self.rate(model))


class _Steps(WorkloadTable, tag="steps"):
    steps: Annotated[tuple[tuple[_Rate, _Rate], ...], _STEPS]

    def workload(self, model: _Model) -> Workload:
        seconds = [at_s for at_s, _ in self.steps]
        if seconds != sorted(set(seconds)):
            raise TableError("steps", f"at {seconds}", "ascending seconds")
        return Steps(self.steps)


class _Diurnal(WorkloadTable, tag="diurnal"):
    low_rps: _Rate
    high_rps: _Positive
    period_s: _Positive

    def workload(self, model: _Model) -> Workload:
        if self.low_rps > self.high_rps:
            raise TableError("low_rps", f"{self.low_rps:g}", f"at most high_rps, {self.high_rps:g}")
        return Diurnal(self.low_rps, self.high_rps, self.period_s)


class _Mmpp(WorkloadTable, tag="mmpp"):
    states: Annotated[tuple[tuple[_Rate, _Positive], ...], _STATES]

    def workload(self, model: _Model) -> Workload:
        return Mmpp(self.states)


class _Ramp(WorkloadTable, tag="ramp"):
    rates_rps: Annotated[tuple[_Positive, ...], _RATES]
    every: Annotated[_Count | Annotated[tuple[_Count, ...], Meta(min_length=1)], _EVERY] = 150
    random_gaps: bool = False

    def workload(self, model: _Model) -> Workload:
        return Ramp(self.rates_rps, self.every, self.random_gaps)


class _Recorded(WorkloadTable):
    """A trace of many functions: one of them, or a part of all."""

    file: _File
    function: str | None = None
    part: _Part | None = None
    speed: _Positive = 1.0

    def place(self) -> tuple[int, int]:
        """Which part of how many, from 0."""
        first, of = map(int, (self.part or "1/1").split("/"))
        if not 1 <= first <= of:
            raise TableError("part", repr(self.part), 'such as "2/9", the second part of nine')
        return first - 1, of


class _Azure(_Recorded, tag="azure"):
    """Counts by minute, folded onto models as DeepPlan does."""

    rate_rps: _Rate | None = None
    total_rps: _Positive | None = None
    skip: Annotated[int, Meta(ge=0)] = 0
    drawn: Annotated[int, Meta(ge=1, le=100_000)] | None = None

    def workload(self, model: _Model) -> Workload:
        place, parts = self.place()
        if self.function is not None and (self.skip or self.drawn):
            raise TableError("function", repr(self.function), "none of it beside skip or drawn")
        if self.part is None and not (self.skip or self.drawn):
            mapped = model.traces.function(self.file, self.function)
        else:
            mapped = model.traces.folded(self.file, parts, self.skip, self.drawn)[place]
        # Rates are those that are played: at twice the speed, half the rate of the trace makes one.
        if self.total_rps is not None:
            scale = mapped.scale * self.total_rps / self.speed
        else:
            mean_rps = sum(mapped.counts) / (mapped.bin_s * len(mapped.counts))
            rate_rps = model.rate_rps if self.rate_rps is None else self.rate_rps
            scale = rate_rps / self.speed / mean_rps if mean_rps else 0.0
        return replace(mapped, scale=scale, speed=self.speed)


class _Azure2021(_Recorded, tag="azure-2021"):
    """Invocations as they were, or as AlpaServe refits them window by window."""

    window_s: _Positive | None = None
    rate_scale: _Positive = 1.0
    cv_scale: _Positive = 1.0

    def workload(self, model: _Model) -> Workload:
        times = model.traces.invocations(self.file)
        if self.part is None:
            path = model.traces.folder / self.file
            times = {"": times[chosen("function", self.function, times, path)]}
        place, parts = self.place()
        names = [str(index) for index in range(parts)]
        if self.window_s is None:
            return ReplayedTrace(merged(times, names)[names[place]], self.speed)
        fitted = refitted(times, names, self.window_s, self.rate_scale, self.cv_scale)
        return fitted[names[place]]


class _Trace(WorkloadTable, tag="trace"):
    file: _File
    model: str | None = None
    speed: _Positive = 1.0

    def workload(self, model: _Model) -> Workload:
        times = model.traces.own_times(self.file)
        path = model.traces.folder / self.file
        name = chosen("model", self.model or model.name, times, path)
        return ReplayedTrace(times[name], self.speed)


_ANY: Any = (
    _Poisson | _Gamma | _Uniform | _Steady | _Steps | _Diurnal | _Mmpp | _Ramp | _Azure
    | _Azure2021 | _Trace
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
    found: WorkloadTable = read_table({"kind": "gamma", **table}, _ANY, where)
    try:
        return found.workload(_Model(model, rate_rps, cv, traces))
    except TableError as error:
        raise TableError(f"{where}.{error.key}".lstrip("."), error.found, error.expected) from None
