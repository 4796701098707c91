"""Laws of every planner in the catalog, which uses the whole of a fleet (packers: next door)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.latency import surface
from interlace.perf.memory import holds
from interlace.policy.catalog import CATALOG, resolve
from interlace.policy.planners.nested import Nested

SHARES = (20, 40, 60, 80, 100)
#: As MIG's: not every set of at most 100 % is legal, and memory comes with the share.
LAYOUTS = ((20, 20, 40), (20, 60), (40, 40), (100,))
WALLS = ((20, 500), (40, 900), (60, 1_200), (80, 1_600), (100, 2_000))
#: Systems whose plans are duty cycles with a wait of one cycle and one execution at most.
CYCLIC = ("bestfit", "gpulet", "gslice", "ideal", "nexus")

World = tuple[list[Demand], Fleet, dict[str, Profile]]


def _profile(
    name: str, fixed: float, row: float, width: int, weights: int, most: int = 32
) -> Profile:
    points = {}
    for share in SHARES:
        slow = max(1.0, width / share)
        for batch in (b for b in (1, 2, 4, 8, 16, 32) if b <= most):
            ms = (fixed + row * batch) * slow
            points[batch, share] = LatencyPoint(ms, ms, ms, 5)
    return Profile(name, "d", "k", weights, 1, points)


@st.composite
def worlds(draw: st.DrawFn, models: int = 6, gpus: int = 3, most: int = 32) -> World:
    names = [f"m{i}" for i in range(draw(st.integers(1, models)))]
    profiles = {
        name: _profile(
            name,
            draw(st.floats(0.2, 20.0)),
            draw(st.floats(0.05, 5.0)),
            draw(st.integers(10, 100)),
            draw(st.integers(1, 1_200)),
            most,
        )
        for name in names
    }
    demand = [
        Demand(name, draw(st.floats(0.0, 500.0)), draw(st.floats(5.0, 400.0)), most)
        for name in names
    ]
    free = Gpu("", "k", 100, 2_000, SHARES)
    # Four blocks of 21 units and a rest that the whole alone has: 20 beside 80 does not fit.
    cut = replace(free, units=104, blocks=(4, 21))
    kind = draw(st.sampled_from([free, cut, replace(free, layouts=LAYOUTS, walls=WALLS)]))
    count = draw(st.integers(1, gpus))
    return demand, Fleet(tuple(replace(kind, id=f"g{i}") for i in range(count))), profiles


def _served(plan: Plan, model: str) -> float:
    return sum(s.rows_per_s for p in plan.partitions for s in p.slots if s.model == model)


systems = pytest.mark.parametrize("name", sorted(CATALOG))
cyclic = pytest.mark.parametrize("name", CYCLIC)


@systems
@settings(max_examples=12, deadline=None)
@given(worlds())
def test_plans_are_legal(name: str, world: World) -> None:
    demand, fleet, profiles = world
    plan = resolve(name).planner(demand, fleet, profiles, Plan())
    for gpu in fleet.gpus:
        here = [p for p in plan.partitions if p.gpu == gpu.id]
        shares = [p.share_pct for p in here]
        if plan.overlapping and not gpu.layouts:  # side by side in time, not in space
            assert all(gpu.legal([share]) for share in shares)
        else:
            assert gpu.legal(shares)
        held = [(p.share_pct, [slot.model for slot in p.slots]) for p in here]
        assert holds(gpu, held, profiles)
        assert all(len(models) == len(set(models)) for _, models in held)
    assert len({p.id for p in plan.partitions}) == len(plan.partitions)
    assert {p.gpu for p in plan.partitions} <= {gpu.id for gpu in fleet.gpus}
    assert all(plan.reasons.get(model) for model in plan.unserved_rows_per_s)


@systems
@settings(max_examples=6, deadline=None)
@given(worlds())
def test_the_same_question_has_the_same_answer(name: str, world: World) -> None:
    demand, fleet, profiles = world
    planner = resolve(name).planner
    assert planner(demand, fleet, profiles, Plan()) == planner(demand, fleet, profiles, Plan())


@cyclic
@settings(max_examples=12, deadline=None)
@given(worlds())
def test_cycles_fit_and_the_worst_case_is_in_time(name: str, world: World) -> None:
    demand, fleet, profiles = world
    plan = resolve(name).planner(demand, fleet, profiles, Plan())
    _keeps_slos(plan, demand, profiles)


def _keeps_slos(plan: Plan, demand: list[Demand], profiles: dict[str, Profile]) -> None:
    slo = {one.model: one.slo_ms for one in demand}
    for p in plan.partitions:
        turns = [s for s in p.slots if s.rows_per_s > 0]  # a rate of 0 is a home, not a promise
        runs = {s.model: surface(profiles[s.model]).latency_ms(s.batch, p.share_pct) for s in turns}
        assert sum(runs.values()) <= p.duty_ms * (1 + 1e-6) or not turns
        assert all(p.duty_ms + ms <= slo[m] * (1 + 1e-6) for m, ms in runs.items())
        for s in turns:
            assert s.batch * 1000.0 / p.duty_ms >= s.rows_per_s * (1 - 1e-6)


@systems
@settings(max_examples=6, deadline=None)
@given(worlds())
def test_every_model_has_a_home_or_a_reason(name: str, world: World) -> None:
    demand, fleet, profiles = world
    plan = resolve(name).planner(demand, fleet, profiles, Plan())
    housed = {slot.model for p in plan.partitions for slot in p.slots}
    assert all(one.model in housed or plan.reasons.get(one.model) for one in demand)


GOOD = _profile("m", 1.0, 1.0, 50, 1)
ODD = {
    "a negative rate": Demand("m", -5.0, 50.0),
    "no rate": Demand("m", nan, 50.0),
    "an infinite rate": Demand("m", inf, 50.0),
    "no SLO": Demand("m", 5.0, nan),
    "an SLO of zero": Demand("m", 5.0, 0.0),
    "a negative SLO": Demand("m", 5.0, -1.0),
    "an infinite SLO": Demand("m", 5.0, inf),
    "an impossible SLO": Demand("m", 5.0, 0.5),
    "no batch": Demand("m", 5.0, 50.0, 0),
    "an unknown model": Demand("unknown", 5.0, 50.0),
    "an empty profile": Demand("empty", 5.0, 50.0),
    "a model too large": Demand("large", 5.0, 50.0),
}
KNOWN = {
    "m": GOOD,
    "fine": replace(GOOD, model="fine"),
    "empty": replace(GOOD, model="empty", points={}),
    "large": replace(GOOD, model="large", weights_bytes=10**9),
}


@systems
@pytest.mark.parametrize("odd", sorted(ODD))
def test_odd_demands_have_reasons_and_harm_nobody(name: str, odd: str) -> None:
    fleet = Fleet((Gpu("g", "k", 100, 2_000, SHARES),))
    fine = Demand("fine", 10.0, 100.0)
    planner = resolve(name).planner
    try:
        plan = planner([ODD[odd], fine], fleet, KNOWN, Plan())
    except ValueError as error:
        assert ODD[odd].model in str(error)
        return
    assert plan.reasons[ODD[odd].model]
    assert ODD[odd].model in plan.unserved_rows_per_s
    assert _served(plan, "fine") >= 10.0 * (1 - 1e-6)


@systems
def test_shares_below_what_was_measured_are_not_used(name: str) -> None:
    points = {key: p for key, p in GOOD.points.items() if key[1] >= 40}
    fleet = Fleet((Gpu("g", "k", 100, 2_000, (10, *SHARES)),))
    demand = [Demand("m", 10.0, 100.0)]
    plan = resolve(name).planner(demand, fleet, {"m": replace(GOOD, points=points)}, Plan())
    assert plan.partitions and all(p.share_pct >= 40 for p in plan.partitions)
    assert not plan.unserved_rows_per_s


@cyclic
def test_a_model_asked_for_twice_is_an_error(name: str) -> None:
    fleet = Fleet((Gpu("g", "k", 100, 2_000, SHARES),))
    twice = [Demand("m", 1.0, 50.0), Demand("m", 2.0, 50.0)]
    with pytest.raises(ValueError, match=r"m is asked for 2 times"):
        resolve(name).planner(twice, fleet, KNOWN, Plan())


@systems
def test_an_empty_fleet_and_an_empty_demand_are_plans(name: str) -> None:
    planner = resolve(name).planner
    nothing = planner([], Fleet((Gpu("g", "k", 4, 10, SHARES),)), {}, Plan())
    assert not nothing.unserved_rows_per_s
    nowhere = planner([Demand("m", 5.0, 50.0)], Fleet(()), {"m": GOOD}, Plan())
    assert nowhere.partitions == () and nowhere.unserved_rows_per_s["m"] == 5.0
    assert nowhere.reasons["m"]


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_nested_hosts_are_nested_and_its_headroom_fits(
    world: World,
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


def test_an_unknown_system_is_named_with_what_there_is() -> None:
    with pytest.raises(KeyError, match="did you mean gpulet"):
        resolve("gpulets")
