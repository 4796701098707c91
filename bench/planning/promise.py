"""How much of what the engine keeps our packer promises: one model, from tight SLOs to loose.

Planned is the highest rate that it serves with so many GPUs; kept is the highest at which the
engine answers the promised part of the requests in time, the model on all of them, on average over
seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Annotated, Final

from bench.harness import Report, Table, main
from bench.harness.bisection import highest
from bench.planning.a100 import attainment as played
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.planning.scenario import Scenario
from interlace.policy.planners.patterns import Patterns

_MODEL: Final = "m"
_SHARE_PCT: Final = 100
_GPU: Final = Gpu("", "k", 100, 10**12, (_SHARE_PCT,))
_EXACTLY: Final = 1.01
_LEAST_RPS: Final = 1e-2
_START_RPS: Final = 100.0
_REQUESTS: Final = 10_000  #: in one run of the engine


def promise(
    *,
    fixed_ms: float = 2.0,
    row_ms: float = 0.1,
    cv: float = 1.0,
    attainment: float = 0.99,
    max_batch: int = 32,
    slos: Annotated[tuple[float, ...], "times L(1)"] = (1.3, 2.1, 2.3, 2.5, 3, 4, 6, 10, 20),
    gpus: int = 1,
    seeds: int = 3,
) -> Report:
    """Planned and kept rates for L(b) = fixed + row b."""
    profiles = {_MODEL: affine(_MODEL, fixed_ms, row_ms, max_batch)}
    cells = []
    for slo in slos:
        asked = Demand(
            _MODEL, 1.0, slo * (fixed_ms + row_ms), max_batch, attainment=attainment, cv=cv
        )
        planned = planned_rps(asked, profiles, gpus)
        kept = kept_rps(asked, profiles, gpus, seeds, planned or _START_RPS)
        part = planned / kept if kept else 0.0
        cells.append((slo, round(planned, 1), round(kept, 1), f"{part:.1%}"))
        print(*cells[-1], flush=True)
    heads = ("SLO / L(1)", "planned /s", "kept /s", "planned / kept")
    return Report(tables=[Table(heads, cells)])


def affine(model: str, fixed_ms: float, row_ms: float, max_batch: int) -> Profile:
    """A profile of L(b) = fixed + row b on a whole GPU."""
    points = {}
    for batch in range(1, max_batch + 1):
        ms = fixed_ms + row_ms * batch
        points[batch, _SHARE_PCT] = LatencyPoint(ms, ms, ms, 1)
    return Profile(model, "d", _GPU.kind, 1, 1, points)


def planned_rps(asked: Demand, profiles: Mapping[str, Profile], gpus: int = 1) -> float:
    """The highest rate that our packer serves with so many GPUs."""
    there = uniform_fleet(_GPU, gpus)

    def serves(rate_rps: float) -> bool:
        demand = [_at(asked, rate_rps)]
        return not Patterns()(demand, there, profiles, Plan()).unserved_rows_per_s

    return _largest(serves, _START_RPS)


def kept_rps(
    asked: Demand,
    profiles: Mapping[str, Profile],
    gpus: int = 1,
    seeds: int = 3,
    start_rps: float = _START_RPS,
) -> float:
    """The highest rate at which the engine keeps the promise with a partition on every GPU."""
    there = uniform_fleet(_GPU, gpus)

    def keeps(rate_rps: float) -> bool:
        one = _at(asked, rate_rps)
        seconds = max(1.0, _REQUESTS / rate_rps)
        plan, scenario = everywhere(one, there), Scenario((one,), _GPU, profiles)
        parts = (
            played(plan, there, scenario, "interlace", seconds, seed)[_MODEL]
            for seed in range(seeds)
        )
        return fmean(parts) >= asked.attainment

    return _largest(keeps, start_rps)


def everywhere(asked: Demand, fleet: Fleet) -> Plan:
    """The model alone on every GPU, its rate spread evenly."""
    slot = Slot(asked.model, asked.max_batch, asked.rows_per_s / len(fleet.gpus))
    return Plan(tuple(Partition(f"{gpu.id}:0", gpu.id, _SHARE_PCT, (slot,)) for gpu in fleet.gpus))


def _at(asked: Demand, rate_rps: float) -> Demand:
    return Demand(
        asked.model,
        rate_rps,
        asked.slo_ms,
        asked.max_batch,
        attainment=asked.attainment,
        cv=asked.cv,
    )


def _largest(holds: Callable[[float], bool], start: float) -> float:
    """The highest rate that holds, searched from ``start`` up or down; 0 if next to none does."""
    low = start
    while not holds(low):
        low /= 2.0
        if low < _LEAST_RPS:
            return 0.0
    high = 2.0 * low
    while holds(high):
        low, high = high, 2.0 * high
    return highest(holds, low, high, _EXACTLY)


if __name__ == "__main__":
    main(promise)
