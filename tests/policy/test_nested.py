"""Our planner of few large units: nested hosts, and what its headroom promises."""

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.perf.latency import surface
from interlace.policy.planners.nested import Nested
from interlace.testing.worlds import PlanningCase, planning_cases, scaled_profile


@settings(max_examples=60, deadline=None)
@given(planning_cases())
def test_nested_hosts_are_nested_and_its_headroom_fits(case: PlanningCase) -> None:
    demand, fleet, profiles = case
    plan = Nested(busy=1.0)(demand, fleet, profiles, Plan())
    hosts: dict[str, set[str]] = {}
    for p in plan.partitions:
        for slot in p.slots:
            hosts.setdefault(slot.model, set()).add(p.id)
    if any("memory" in reason for reason in plan.reasons.values()):
        return
    memory_bound = len({frozenset(h) for h in hosts.values()}) > len(plan.partitions)
    sets = sorted(hosts.values(), key=len)
    assert memory_bound or all(a <= b for a, b in itertools.pairwise(sets))
    for one in demand:
        if one.model in hosts:
            alone_ms = surface(profiles[one.model]).latency_ms(1, plan.partitions[0].share_pct)
            assert alone_ms <= one.slo_ms


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(2, 12)), min_size=1, max_size=8))
def test_a_batch_takes_half_of_the_tightest_slo_beside_it(models: list[tuple[int, int]]) -> None:
    """Of those that one row alone leaves that much; SLOs are twice what is left, and the others."""
    rows = {f"{n}": (float(row_ms), 2.0 * half_ms) for n, (row_ms, half_ms) in enumerate(models)}
    rows = {name: (row_ms, slo_ms) for name, (row_ms, slo_ms) in rows.items() if row_ms <= slo_ms}
    profiles = {
        name: scaled_profile(name, row_ms, row_ms, 64, 1) for name, (row_ms, _) in rows.items()
    }
    fleet = Fleet((Gpu("g", "k", 1, 100, (100,)),))
    demand = [Demand(name, 1.0, slo_ms) for name, (_, slo_ms) in rows.items()]
    plan = Nested()(demand, fleet, profiles, Plan())
    alone = {name: surface(profiles[name]).latency_ms(1, 100) for name in rows}
    for slot in (slot for part in plan.partitions for slot in part.slots):
        left_ms = [slo / 2 - alone[name] for name, (_, slo) in rows.items() if name != slot.model]
        limit_ms = min((ms for ms in left_ms if ms >= alone[slot.model]), default=math.inf)
        if slot.batch > 1:
            assert surface(profiles[slot.model]).latency_ms(slot.batch, 100) <= limit_ms


def test_a_long_model_leaves_one_partition_to_a_tight_one() -> None:
    profiles = {
        "long": scaled_profile("long", 60.0, 1.0, 10, 1),
        "tight": scaled_profile("tight", 2.0, 1.0, 10, 1),
    }
    fleet = Fleet((Gpu("g", "k", 2, 100, (50, 100)),))
    demand = [Demand("long", 5.0, 300.0), Demand("tight", 50.0, 40.0)]
    plan = Nested()(demand, fleet, profiles, Plan())
    hosted = sorted(sorted(slot.model for slot in p.slots) for p in plan.partitions)
    assert hosted == [["long", "tight"], ["tight"]]
