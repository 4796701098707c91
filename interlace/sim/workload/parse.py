"""A workload from the few words of a scenario file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from interlace.sim.arrivals import Workload
from interlace.sim.workload.changing import Diurnal, Mmpp, Ramp, Steps
from interlace.sim.workload.recorded import Counts, Replayed, azure_counts, own_times
from interlace.sim.workload.renewal import Gamma
from interlace.sim.workload.spacing import Steady, Uniform


class WorkloadError(ValueError):
    """A table that is no workload: which key, what is there, what was expected."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A TOML table, the model it is of, its planned rate, and where its files lie."""

    keys: Mapping[str, object]
    model: str
    rate_rps: float
    cv: float
    folder: Path

    def number(self, key: str, default: float | None = None) -> float:
        value = self.keys.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise WorkloadError(f"{key}: expected a number of 0 or more, found {value!r}")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if value <= 0:
            raise WorkloadError(f"{key}: expected a number above 0, found {value:g}")
        return value

    def pairs(self, key: str, what: str) -> tuple[tuple[float, float], ...]:
        value = self.keys.get(key)
        if not isinstance(value, list) or not value:
            raise WorkloadError(f"{key}: expected a list of [{what}], found {value!r}")
        pairs: list[tuple[float, float]] = []
        for place, one in enumerate(value):
            numbers = isinstance(one, list) and all(isinstance(n, (int, float)) for n in one)
            if not numbers or len(one) != 2:
                raise WorkloadError(f"{key}[{place}]: expected [{what}], found {one!r}")
            pairs.append((float(one[0]), float(one[1])))
        return tuple(pairs)

    def file(self) -> Path:
        value = self.keys.get("file")
        if not isinstance(value, str):
            raise WorkloadError(f"file: expected a path, found {value!r}")
        return self.folder / value


def _steps(table: _Table) -> Workload:
    steps = table.pairs("steps", "second, requests per second")
    if list(steps) != sorted(steps):
        raise WorkloadError("steps: expected ascending seconds")
    return Steps(steps)


def _ramp(table: _Table) -> Workload:
    rates = table.keys.get("rates_rps")
    if not isinstance(rates, list) or not rates or not all(_above_0(one) for one in rates):
        raise WorkloadError(f"rates_rps: expected a list of numbers above 0, found {rates!r}")
    return Ramp(tuple(float(one) for one in rates), int(table.positive("every", 150)))


def _azure(table: _Table) -> Workload:
    counts = azure_counts(table.file())
    name = table.keys.get("function", next(iter(counts), None))
    if not isinstance(name, str) or name not in counts:
        raise WorkloadError(f"function: {name!r} is not among the {len(counts)} of {table.file()}")
    mean_rps = sum(counts[name]) / (60.0 * len(counts[name])) or 1.0
    scale = table.number("rate_rps", table.rate_rps) / mean_rps
    return Counts(counts[name], scale=scale, speed=table.positive("speed", 1.0))


def _trace(table: _Table) -> Workload:
    times = own_times(table.file())
    name = table.keys.get("model", table.model)
    if not isinstance(name, str) or name not in times:
        raise WorkloadError(f"model: {name!r} is not among those of {table.file()}")
    return Replayed(times[name], table.positive("speed", 1.0))


#: Kinds of workload, with the keys that each understands beside ``kind`` and what makes it.
KINDS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[_Table], Workload]]]] = MappingProxyType(
    {
        "poisson": (("rate_rps",), lambda t: Gamma(t.number("rate_rps", t.rate_rps))),
        "gamma": (
            ("rate_rps", "cv"),
            lambda t: Gamma(t.number("rate_rps", t.rate_rps), t.positive("cv", t.cv)),
        ),
        "uniform": (("rate_rps",), lambda t: Uniform(t.number("rate_rps", t.rate_rps))),
        "steady": (("rate_rps",), lambda t: Steady(t.number("rate_rps", t.rate_rps))),
        "steps": (("steps",), _steps),
        "diurnal": (
            ("low_rps", "high_rps", "period_s"),
            lambda t: Diurnal(t.number("low_rps"), t.positive("high_rps"), t.positive("period_s")),
        ),
        "mmpp": (
            ("states",),
            lambda t: Mmpp(t.pairs("states", "requests per second, mean seconds")),
        ),
        "ramp": (("rates_rps", "every"), _ramp),
        "azure": (("file", "function", "rate_rps", "speed"), _azure),
        "trace": (("file", "model", "speed"), _trace),
    }
)


def workload(
    table: Mapping[str, object], model: str, rate_rps: float, cv: float, folder: Path
) -> Workload:
    """The workload that a table describes; rate and variation are the model's where not given.

    Raises:
        WorkloadError: an unknown kind or key, or a value that is none.
        TraceError: a file that is no trace.
        OSError: a file that cannot be read.
    """
    kind = table.get("kind", "gamma")
    if not isinstance(kind, str) or kind not in KINDS:
        raise WorkloadError(f"kind: expected one of {', '.join(KINDS)}, found {kind!r}")
    keys, make = KINDS[kind]
    if unknown := sorted(set(table) - {"kind", *keys}):
        raise WorkloadError(f"{unknown[0]}: '{kind}' has the keys {', '.join(keys)}")
    return make(_Table(table, model, rate_rps, cv, folder))


def _above_0(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
