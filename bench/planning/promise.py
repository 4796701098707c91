"""How much of what the dispatcher keeps our packer promises: one model, from tight SLOs to loose.

Planned is the highest rate that it serves with one GPU; kept is the highest at which the engine
answers the promised part of the requests in time, with an interval of 95 %. The last column is the
part in time, and its interval, at the planned rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final

import numpy as np

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
_REQUESTS: Final = 10_000  #: in one run
_FIRST_SEED: Final = 1000
_NORMAL_95: Final = 1.96


def promise(
    *,
    fixed_ms: float = 2.0,
    row_ms: float = 0.1,
    cvs: Annotated[tuple[float, ...], "of gaps"] = (0.3, 1, 2, 3, 4),
    attainment: float = 0.99,
    max_batch: int = 32,
    slos: Annotated[tuple[float, ...], "times L(1)"] = (2.1, 2.3, 2.5, 3, 4, 6, 10, 20),
    seeds: int = 5,
) -> Report:
    """Planned and kept rates for L(b) = fixed + row b."""
    profiles = {_MODEL: affine(_MODEL, fixed_ms, row_ms, max_batch)}
    cells = []
    for cv, slo in ((cv, slo) for cv in cvs for slo in slos):
        slo_ms = slo * (fixed_ms + row_ms)
        asked = Demand(_MODEL, 1.0, slo_ms, max_batch, attainment=attainment, cv=cv)
        planned = planned_rps(asked, profiles)
        kept, low, high = kept_rps(asked, profiles, seeds)
        part = f"{planned / kept:.1%}" if kept else "-"
        interval = f"{low:.4g} to {high:.4g}"
        seen = _in_time(asked, planned, profiles, seeds) if planned else "-"
        cells.append((cv, slo, f"{planned:.4g}", f"{kept:.4g}", interval, part, seen))
        print(*cells[-1], flush=True)
    heads = ("cv", "SLO / L(1)", "planned /s", "kept /s", "95 %", "planned / kept", "in time, %")
    return Report(tables=[Table(heads, cells)])


def affine(model: str, fixed_ms: float, row_ms: float, max_batch: int) -> Profile:
    """A profile of L(b) = fixed + row b on a whole GPU."""
    points = {}
    for batch in range(1, max_batch + 1):
        ms = fixed_ms + row_ms * batch
        points[batch, _SHARE_PCT] = LatencyPoint(ms, ms, ms, 1)
    return Profile(model, "d", _GPU.kind, 1, 1, points)


def planned_rps(asked: Demand, profiles: Mapping[str, Profile]) -> float:
    """The highest rate that our packer serves with one GPU."""
    there = uniform_fleet(_GPU, 1)

    def serves(rate_rps: float) -> bool:
        demand = [replace(asked, rows_per_s=rate_rps)]
        return not Patterns()(demand, there, profiles, Plan()).unserved_rows_per_s

    return _largest(serves, _START_RPS)


def kept_rps(
    asked: Demand, profiles: Mapping[str, Profile], seeds: int
) -> tuple[float, float, float]:
    """The highest rate at which one host keeps the promise, and the interval of 95 % around it.

    0 where it keeps next to none.
    """

    def of_seed(seed: int) -> float:
        def keeps(rate_rps: float) -> bool:
            return part_in_time(asked, rate_rps, profiles, seed) >= asked.attainment

        return _largest(keeps, _START_RPS)

    return _mean_and_95([of_seed(seed) for seed in range(_FIRST_SEED, _FIRST_SEED + seeds)])


def part_in_time(
    asked: Demand, rate_rps: float, profiles: Mapping[str, Profile], seed: int
) -> float:
    """The part of the requests in time at that rate, as the engine plays one host."""
    there, one = uniform_fleet(_GPU, 1), replace(asked, rows_per_s=rate_rps)
    scenario = Scenario((one,), _GPU, profiles)
    seconds = _REQUESTS / rate_rps
    return played(everywhere(one, there), there, scenario, "interlace", seconds, seed)[_MODEL]


def _mean_and_95(found: Sequence[float]) -> tuple[float, float, float]:
    """The mean of some runs, and the interval in which the true one lies with 95 %."""
    mean = float(np.mean(found))
    spread = _NORMAL_95 * float(np.std(found, ddof=1)) / len(found) ** 0.5 if found[1:] else 0.0
    return mean, mean - spread, mean + spread


def _in_time(asked: Demand, rate_rps: float, profiles: Mapping[str, Profile], seeds: int) -> str:
    each = range(_FIRST_SEED, _FIRST_SEED + seeds)
    parts = [100.0 * part_in_time(asked, rate_rps, profiles, seed) for seed in each]
    mean, low, high = _mean_and_95(parts)
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def everywhere(asked: Demand, fleet: Fleet) -> Plan:
    """The model alone on every GPU, its rate spread evenly."""
    slot = Slot(asked.model, asked.max_batch, asked.rows_per_s / len(fleet.gpus))
    return Plan(tuple(Partition(f"{gpu.id}:0", gpu.id, _SHARE_PCT, (slot,)) for gpu in fleet.gpus))


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
