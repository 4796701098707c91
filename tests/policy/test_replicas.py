"""Partitions of one model, unlike in share and in what else they run."""

from collections import Counter
from statistics import mean

import pytest

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.request import Outcome
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import Gamma, merge_arrivals
from interlace.sim.record import RunRecord
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation

SECONDS = 6.0


def _profile(model: str, lines: dict[int, tuple[float, float]]) -> Profile:
    """L(b) = fixed + b row for each share, in ms."""
    points = {}
    for share_pct, (fixed_ms, row_ms) in lines.items():
        for batch in (1, 2, 4, 8, 16, 32, 64):
            ms = fixed_ms + batch * row_ms
            points[batch, share_pct] = LatencyPoint(ms, ms, ms, 1)
    return Profile(model, "", "line", 1, 1, points, load_ms=1.0)


WIDE = _profile("wide", {14: (4.0, 3.8), 100: (1.0, 0.57)})
QUICK = _profile("quick", {14: (20.0, 6.0), 100: (4.0, 1.1)})
PROFILES = {"wide": WIDE, "quick": QUICK}


def _played(parts: tuple[Partition, ...], demand: tuple[Demand, ...], seed: int = 0) -> RunRecord:
    fleet = Fleet(tuple(Gpu(part.gpu, "line", 1, 10**9, (14, 100)) for part in parts))
    rates = {one.model: Gamma(one.rows_per_s, one.cv) for one in demand}
    arrivals = merge_arrivals(rates, SECONDS, seed)
    return simulate(
        Simulation(
            resolve("interlace"), fleet, demand, PROFILES, PROFILES, arrivals, Plan(parts),
            warm_ms=1_000.0,
        )
    )  # fmt: skip


def _part(gpu: str, share_pct: int, *slots: Slot) -> Partition:
    return Partition(f"{gpu}:0", gpu, share_pct, slots)


@pytest.mark.parametrize("cv", [0.3, 1.0])
def test_slow_replicas_run_planned_batches_beside_a_fast_one(cv: float) -> None:
    """Two slices of 14 % and a turn on a whole accelerator, as in a published scenario.

    With batches of all that is queued, or of a rate divided by three, the slices run 35 rows for
    16 planned, wait until heads must begin, and drop what the whole accelerator could have served.
    """
    parts = (
        _part("slow0", 14, Slot("wide", 16, 143.5)),
        _part("slow1", 14, Slot("wide", 16, 143.5)),
        _part("fast", 100, Slot("quick", 16, 543.0), Slot("wide", 16, 493.0)),
    )
    demand = (Demand("wide", 780.0, 227.0, 384, cv=cv), Demand("quick", 543.0, 146.0, 192, cv=cv))
    record = _played(parts, demand)
    sizes = [one.rows for one in record.executions if one.gpu != "fast"]
    assert 12 < mean(sizes) <= max(sizes) == 16
    outcomes = Counter(one.outcome for one in record.served)
    assert outcomes[Outcome.OK] == outcomes.total()


def test_a_burst_is_taken_whole() -> None:
    """Rows are left to another replica only as long as they end in time there."""
    parts = tuple(_part(f"gpu{i}", 100, Slot("wide", 8, 400.0)) for i in range(2))
    record = _played(parts, (Demand("wide", 800.0, 60.0, 64, cv=4.0),))
    assert max(one.rows for one in record.executions) > 32
