"""A workload from the few words of a scenario file (docs/workloads.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Final

from interlace.sim.arrivals import Workload
from interlace.sim.workload.files import azure_counts, azure_invocations, own_times
from interlace.sim.workload.mapping import folded, merged, refitted
from interlace.sim.workload.recorded import BinnedCounts, ReplayedTrace
from interlace.sim.workload.renewal import Gamma
from interlace.sim.workload.spacing import Steady, Uniform
from interlace.sim.workload.table import Table, WorkloadError
from interlace.sim.workload.varying import Diurnal, Mmpp, Ramp, Steps

__all__ = ["KINDS", "WorkloadError", "workload"]

Make = Callable[[Table], Workload]


def _steps(table: Table) -> Workload:
    steps = table.pairs("steps", "second, requests per second")
    if [at_s for at_s, _ in steps] != sorted({at_s for at_s, _ in steps}):
        raise WorkloadError("steps: expected ascending seconds")
    return Steps(steps)


def _diurnal(table: Table) -> Workload:
    low, high = table.number("low_rps"), table.positive("high_rps")
    if low > high:
        raise WorkloadError(f"low_rps: expected at most high_rps, found {low:g} above {high:g}")
    return Diurnal(low, high, table.positive("period_s"))


def _mmpp(table: Table) -> Workload:
    states = table.pairs("states", "requests per second, mean seconds")
    if not all(stay_s > 0 for _, stay_s in states):
        raise WorkloadError("states: expected stays above 0 s")
    return Mmpp(states)


def _ramp(table: Table) -> Workload:
    rates = table.positives("rates_rps")
    return Ramp(rates, table.counts("every", 150), table.flag("random_gaps"))


def _azure(table: Table) -> Workload:
    """Counts by minute: one function, or a part of all as DeepPlan folds them."""
    counts = azure_counts(table.file())
    part, speed = table.part(), table.positive("speed", 1.0)
    if part is None:
        counts = {"": counts[_chosen("function", table.keys.get("function"), counts, table)]}
        part = (0, 1)
    names = [str(index) for index in range(part[1])]
    # Rates are those that are played: at twice the speed, half the rate of the trace makes one.
    if "total_rps" in table.keys:
        mapped = folded(counts, names, table.positive("total_rps") / speed)[names[part[0]]]
        return BinnedCounts(mapped.counts, mapped.bin_s, mapped.scale, speed)
    one = folded(counts, names, 1.0)[names[part[0]]].counts
    mean_rps = sum(one) / (60.0 * len(one))
    scale = table.number("rate_rps", table.rate_rps) / speed / mean_rps if mean_rps else 0.0
    return BinnedCounts(one, scale=scale, speed=speed)


def _azure_2021(table: Table) -> Workload:
    """Invocations: one function, or a part of all; as they were, or as AlpaServe refits them."""
    times = azure_invocations(table.file())
    part = table.part()
    if part is None:
        times = {"": times[_chosen("function", table.keys.get("function"), times, table)]}
        part = (0, 1)
    names = [str(index) for index in range(part[1])]
    if "window_s" not in table.keys:
        return ReplayedTrace(merged(times, names)[names[part[0]]], table.positive("speed", 1.0))
    scales = table.positive("rate_scale", 1.0), table.positive("cv_scale", 1.0)
    return refitted(times, names, table.positive("window_s"), *scales)[names[part[0]]]


def _trace(table: Table) -> Workload:
    times = own_times(table.file())
    name = _chosen("model", table.keys.get("model", table.model), times, table)
    return ReplayedTrace(times[name], table.positive("speed", 1.0))


def _chosen(key: str, name: object, names: Iterable[str], table: Table) -> str:
    """A name that is in a file; the first where none is asked for."""
    known = list(names)
    if name is None:
        return known[0]
    if not isinstance(name, str) or name not in known:
        near = get_close_matches(str(name), known, n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise WorkloadError(
            f"{key}: {name!r} is not among the {len(known)} of {table.file()}{hint}"
        )
    return name


def _of_rate(made: Callable[[float], Workload]) -> Make:
    return lambda table: made(table.number("rate_rps", table.rate_rps))


def _gamma(table: Table) -> Workload:
    return Gamma(table.number("rate_rps", table.rate_rps), table.positive("cv", table.cv))


#: Kinds of workload, with the keys that each understands beside ``kind`` and what makes it.
KINDS: Final[Mapping[str, tuple[tuple[str, ...], Make]]] = MappingProxyType(
    {
        "poisson": (("rate_rps",), _of_rate(Gamma)),
        "gamma": (("rate_rps", "cv"), _gamma),
        "uniform": (("rate_rps",), _of_rate(Uniform)),
        "steady": (("rate_rps",), _of_rate(Steady)),
        "steps": (("steps",), _steps),
        "diurnal": (("low_rps", "high_rps", "period_s"), _diurnal),
        "mmpp": (("states",), _mmpp),
        "ramp": (("rates_rps", "every", "random_gaps"), _ramp),
        "azure": (("file", "function", "part", "rate_rps", "total_rps", "speed"), _azure),
        "azure-2021": (
            ("file", "function", "part", "window_s", "rate_scale", "cv_scale", "speed"),
            _azure_2021,
        ),
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
    return make(Table(table, model, rate_rps, cv, folder))
