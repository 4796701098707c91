"""Our planner of few large units: nested hosts, and what its headroom promises."""

import itertools

from hypothesis import given, settings

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
