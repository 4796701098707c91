"""Laws of every planner in the catalog, on random demands, profiles and fleets."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Point, Profile
from interlace.perf.latency import surface
from interlace.perf.memory import needed_bytes
from interlace.policy.catalog import CATALOG, system
from interlace.policy.planners.gpulet import Gpulet
from interlace.policy.planners.nested import Nested

SHARES = (20, 40, 60, 80, 100)


def _profile(name: str, fixed: float, row: float, width: int, weights: int) -> Profile:
    points = {}
    for share in SHARES:
        slow = max(1.0, width / share)
        for batch in (1, 2, 4, 8, 16, 32):
            ms = (fixed + row * batch) * slow
            points[batch, share] = Point(ms, ms, ms, 5)
    return Profile(name, "d", "k", weights, 1, points)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Demand], Fleet, dict[str, Profile]]:
    names = [f"m{i}" for i in range(draw(st.integers(1, 6)))]
    profiles = {
        name: _profile(
            name,
            draw(st.floats(0.2, 20.0)),
            draw(st.floats(0.05, 5.0)),
            draw(st.integers(10, 100)),
            draw(st.integers(1, 1_200)),
        )
        for name in names
    }
    demand = [
        Demand(name, draw(st.floats(0.0, 500.0)), draw(st.floats(5.0, 400.0)), 32) for name in names
    ]
    count = draw(st.integers(1, 3))
    fleet = Fleet(tuple(Gpu(f"g{i}", "k", 100, 2_000, SHARES) for i in range(count)))
    return demand, fleet, profiles


planners = pytest.mark.parametrize("name", sorted(CATALOG))


@planners
@settings(max_examples=40, deadline=None)
@given(worlds())
def test_plans_are_legal(name: str, world: tuple[list[Demand], Fleet, dict[str, Profile]]) -> None:
    demand, fleet, profiles = world
    plan = system(name).planner(demand, fleet, profiles, Plan())
    for gpu in fleet.gpus:
        here = [p for p in plan.partitions if p.gpu == gpu.id]
        assert sum(p.share_pct for p in here) <= 100
        assert all(p.share_pct in gpu.shares_pct for p in here)
        instances = [slot.model for p in here for slot in p.slots]
        assert needed_bytes(instances, profiles) <= gpu.memory_bytes
    assert len({p.id for p in plan.partitions}) == len(plan.partitions)
    assert all(plan.reasons.get(model) for model in plan.unserved_rps)


@planners
@settings(max_examples=30, deadline=None)
@given(worlds())
def test_the_same_question_has_the_same_answer(
    name: str, world: tuple[list[Demand], Fleet, dict[str, Profile]]
) -> None:
    demand, fleet, profiles = world
    planner = system(name).planner
    assert planner(demand, fleet, profiles, Plan()) == planner(demand, fleet, profiles, Plan())


@settings(max_examples=60, deadline=None)
@given(worlds(), st.sampled_from([0, 2]))
def test_gpulet_conserves_demand_and_keeps_slos(
    world: tuple[list[Demand], Fleet, dict[str, Profile]], bound: int
) -> None:
    demand, fleet, profiles = world
    plan = Gpulet(glets_per_gpu=bound)(demand, fleet, profiles, Plan())
    for one in demand:
        served = sum(s.rate_rps for p in plan.partitions for s in p.slots if s.model == one.model)
        left = plan.unserved_rps.get(one.model, 0.0)
        assert served + left == pytest.approx(one.rate_rps, abs=2e-3)
    slo = {one.model: one.slo_ms for one in demand}
    for p in plan.partitions:
        runs = {
            s.model: surface(profiles[s.model]).latency_ms(s.batch, p.share_pct) for s in p.slots
        }
        assert sum(runs.values()) <= p.duty_ms * (1 + 1e-6)
        assert all(p.duty_ms + ms <= slo[m] * (1 + 1e-6) for m, ms in runs.items())
        for s in p.slots:
            assert s.batch * 1000.0 / p.duty_ms >= s.rate_rps * (1 - 1e-6)
    if bound:
        for gpu in fleet.gpus:
            assert len([p for p in plan.partitions if p.gpu == gpu.id]) <= bound


@planners
@settings(max_examples=25, deadline=None)
@given(worlds())
def test_every_model_has_a_home_or_a_reason(
    name: str, world: tuple[list[Demand], Fleet, dict[str, Profile]]
) -> None:
    demand, fleet, profiles = world
    plan = system(name).planner(demand, fleet, profiles, Plan())
    housed = {slot.model for p in plan.partitions for slot in p.slots}
    assert all(one.model in housed or plan.reasons.get(one.model) for one in demand)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_nested_hosts_are_nested_and_its_headroom_fits(
    world: tuple[list[Demand], Fleet, dict[str, Profile]],
) -> None:
    demand, fleet, profiles = world
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
        "long": _profile("long", 60.0, 1.0, 10, 1),
        "tight": _profile("tight", 2.0, 1.0, 10, 1),
    }
    fleet = Fleet((Gpu("g", "k", 2, 100, (50, 100)),))
    demand = [Demand("long", 5.0, 300.0), Demand("tight", 50.0, 40.0)]
    plan = Nested()(demand, fleet, profiles, Plan())
    hosted = sorted(sorted(slot.model for slot in p.slots) for p in plan.partitions)
    assert hosted == [["long", "tight"], ["tight"]]


def test_an_empty_fleet_and_an_empty_demand_are_plans() -> None:
    profile = _profile("m", 1.0, 1.0, 50, 1)
    for name in CATALOG:
        planner = system(name).planner
        nothing = planner([], Fleet((Gpu("g", "k", 4, 10, SHARES),)), {}, Plan())
        assert not nothing.unserved_rps
        nowhere = planner([Demand("m", 5.0, 50.0)], Fleet(()), {"m": profile}, Plan())
        assert nowhere.partitions == () and "m" in nowhere.unserved_rps


def test_an_unknown_system_is_named_with_what_there_is() -> None:
    with pytest.raises(KeyError, match="did you mean gpulet"):
        system("gpulets")
