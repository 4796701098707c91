"""Laws of every packer in the catalog: what any plan for as few accelerators as will do keeps."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.packing.bounds import lower_bound
from interlace.perf.latency import surface
from interlace.perf.memory import holds
from interlace.policy.catalog import CATALOG, resolve

FREE = Gpu("", "k", 100, 2_000, (20, 40, 60, 80, 100))
#: A seven-slice accelerator: 57 beside 42 is legal, 42 beside 57 and anything else is not.
WALLED = Gpu(
    id="",
    kind="k",
    units=7,
    memory_bytes=2_000,
    shares_pct=(14, 28, 42, 57, 100),
    layouts=((100,), (42, 57), (14, 28, 57), (28, 28, 42), (14, 14, 14, 14, 42)),
    walls=((14, 250), (28, 500), (42, 1_000), (57, 1_000), (100, 2_000)),
)
#: Four blocks of 21 units and a rest that the whole alone has: 20 beside 80 does not fit.
CUT = replace(FREE, units=104, blocks=(4, 21))
World = tuple[list[Demand], Fleet, dict[str, Profile]]

packers = pytest.mark.parametrize("name", sorted(CATALOG))
#: Rows whose plans promise a duty cycle: every rate in it, worst case within the SLO.
cyclic = pytest.mark.parametrize(
    "name", sorted(n for n in CATALOG if n in {"bestfit", "gpulet", "ideal", "nexus", "temporal"})
)


def _profile(name: str, fixed: float, row: float, width: int, weights: int) -> Profile:
    points = {}
    for share in sorted({*FREE.shares_pct, *WALLED.shares_pct}):
        slow = max(1.0, width / share)
        for batch in (1, 2, 4, 8, 16, 32):
            ms = (fixed + row * batch) * slow
            points[batch, share] = LatencyPoint(ms, ms, ms, 5)
    return Profile(name, "d", "k", weights, 1, points)


@st.composite
def worlds(draw: st.DrawFn, models: int = 4, gpus: int = 3) -> World:
    names = [f"m{i}" for i in range(draw(st.integers(1, models)))]
    profiles = {
        name: _profile(
            name,
            draw(st.floats(0.2, 10.0)),
            draw(st.floats(0.05, 3.0)),
            draw(st.integers(10, 100)),
            draw(st.integers(1, 900)),
        )
        for name in names
    }
    demand = [
        Demand(name, draw(st.floats(0.5, 300.0)), draw(st.floats(5.0, 300.0))) for name in names
    ]
    kind = draw(st.sampled_from([FREE, CUT, WALLED]))
    return demand, _fleet(kind, draw(st.integers(1, gpus))), profiles


def _fleet(kind: Gpu, count: int) -> Fleet:
    return Fleet(tuple(replace(kind, id=f"g{i}") for i in range(count)))


def _served(plan: Plan, model: str) -> float:
    return sum(s.rows_per_s for p in plan.partitions for s in p.slots if s.model == model)


@packers
@settings(max_examples=12, deadline=None)
@given(worlds())
def test_demand_is_conserved_and_partitions_stand_side_by_side(name: str, world: World) -> None:
    demand, fleet, profiles = world
    plan = resolve(name).packer(demand, fleet, profiles, Plan())
    for gpu in fleet.gpus:
        here = [p for p in plan.partitions if p.gpu == gpu.id]
        assert gpu.legal([p.share_pct for p in here])
        assert holds(gpu, [(p.share_pct, [s.model for s in p.slots]) for p in here], profiles)
    assert {p.gpu for p in plan.partitions} <= {gpu.id for gpu in fleet.gpus}
    assert len({p.id for p in plan.partitions}) == len(plan.partitions)
    for one in demand:
        left = plan.unserved_rows_per_s.get(one.model, 0.0)
        assert _served(plan, one.model) + left == pytest.approx(one.rows_per_s, rel=1e-5, abs=1e-5)
        assert left == 0.0 or plan.reasons[one.model]


@packers
@settings(max_examples=8, deadline=None)
@given(worlds())
def test_a_packer_asked_twice_says_the_same(name: str, world: World) -> None:
    demand, fleet, profiles = world
    packer = resolve(name).packer
    assert packer(demand, fleet, profiles, Plan()) == packer(demand, fleet, profiles, Plan())


@cyclic
@settings(max_examples=25, deadline=None)
@given(worlds())
def test_cycles_hold_their_rates_within_every_slo(name: str, world: World) -> None:
    demand, fleet, profiles = world
    slo_ms = {one.model: one.slo_ms for one in demand}
    for p in resolve(name).packer(demand, fleet, profiles, Plan()).partitions:
        runs = [surface(profiles[s.model]).latency_ms(s.batch, p.share_pct) for s in p.slots]
        assert sum(runs) <= p.duty_ms * (1 + 1e-6)
        for slot, run_ms in zip(p.slots, runs, strict=True):
            assert p.duty_ms + run_ms <= slo_ms[slot.model] * (1 + 1e-6)
            assert slot.batch * 1000.0 / p.duty_ms >= slot.rows_per_s * (1 - 1e-6)


@packers
@settings(max_examples=8, deadline=None)
@given(worlds())
def test_no_packer_needs_fewer_accelerators_than_the_bound(name: str, world: World) -> None:
    demand, fleet, profiles = world
    plan = resolve(name).packer(demand, fleet, profiles, Plan())
    full = [one for one in demand if one.model not in plan.unserved_rows_per_s]
    used = {p.gpu for p in plan.partitions}
    assert len(used) >= lower_bound(full, fleet.gpus[0], profiles).gpus


@cyclic
@settings(max_examples=10, deadline=None)
@given(worlds(models=3, gpus=2))
def test_nobody_schedules_what_exhaustive_search_says_cannot_be(name: str, world: World) -> None:
    demand, fleet, profiles = world
    best = resolve("ideal").packer(demand, fleet, profiles, Plan())
    if not best.unserved_rows_per_s or any("limit" in note for note in best.notes):
        return
    assert resolve(name).packer(demand, fleet, profiles, Plan()).unserved_rows_per_s


@cyclic
@settings(max_examples=10, deadline=None)
@given(worlds(), st.sampled_from([0.5, 2.0, 4.0]))
def test_a_machine_twice_as_fast_serves_twice_the_rate_in_half_the_time(
    name: str, world: World, factor: float
) -> None:
    demand, fleet, profiles = world
    plan = resolve(name).packer(demand, fleet, profiles, Plan())
    faster = [
        replace(d, rows_per_s=d.rows_per_s * factor, slo_ms=d.slo_ms / factor) for d in demand
    ]
    known = {model: _quicker(profile, factor) for model, profile in profiles.items()}
    scaled = resolve(name).packer(faster, fleet, known, Plan())
    assert [(p.gpu, p.share_pct, [s.model for s in p.slots]) for p in plan.partitions] == [
        (p.gpu, p.share_pct, [s.model for s in p.slots]) for p in scaled.partitions
    ]
    assert set(plan.unserved_rows_per_s) == set(scaled.unserved_rows_per_s)


def _quicker(profile: Profile, factor: float) -> Profile:
    points = {
        key: LatencyPoint(p.median_ms / factor, p.p95_ms / factor, p.p99_ms / factor, p.samples)
        for key, p in profile.points.items()
    }
    return replace(profile, points=points)


@packers
@pytest.mark.parametrize("answer", ["planner", "packer"])
@pytest.mark.parametrize(
    "odd",
    [
        Demand("m", nan, 50.0),
        Demand("m", -1.0, 50.0),
        Demand("m", inf, 50.0),
        Demand("m", 1e12, 50.0),
        Demand("m", 10.0, nan),
        Demand("m", 10.0, inf),
        Demand("m", 10.0, 0.0),
        Demand("m", 10.0, -5.0),
        Demand("m", 10.0, 1e-9),
        Demand("m", 10.0, 50.0, 0),
        Demand("nobody", 10.0, 50.0),
        Demand("unmeasured", 10.0, 50.0),
        Demand("huge", 10.0, 50.0),
    ],
    ids=lambda one: f"{one.model}-{one.rows_per_s:g}rps-{one.slo_ms:g}ms-{one.max_batch}",
)
def test_what_cannot_be_planned_has_a_reason_and_harms_nobody(
    name: str, answer: str, odd: Demand
) -> None:
    profiles = {
        "m": _profile("m", 1.0, 0.5, 50, 10),
        "fine": _profile("fine", 1.0, 0.5, 50, 10),
        "unmeasured": replace(_profile("unmeasured", 1.0, 1.0, 50, 10), points={}),
        "huge": _profile("huge", 1.0, 0.5, 50, 10**9),
    }
    planner = getattr(resolve(name), answer)
    plan = planner([Demand("fine", 20.0, 60.0), odd], _fleet(FREE, 2), profiles, Plan())
    assert odd.model in plan.unserved_rows_per_s and len(plan.reasons[odd.model]) > 10
    if odd.rows_per_s != 1e12:
        assert _served(plan, "fine") >= 20.0 * (1 - 1e-6)


@packers
def test_nothing_and_nowhere_are_plans(name: str) -> None:
    packer = resolve(name).packer
    profiles = {"m": _profile("m", 1.0, 1.0, 50, 1)}
    assert packer([], _fleet(FREE, 1), {}, Plan()).unserved_rows_per_s == {}
    assert packer([], Fleet(()), {}, Plan()).partitions == ()
    nowhere = packer([Demand("m", 5.0, 50.0)], Fleet(()), profiles, Plan())
    assert nowhere.unserved_rows_per_s == {"m": 5.0} and nowhere.reasons["m"]
    nobody = packer([Demand("m", 0.0, 50.0)], _fleet(FREE, 1), profiles, Plan())
    assert not nobody.unserved_rows_per_s


@packers
def test_a_model_named_twice_is_an_error_that_says_so(name: str) -> None:
    profiles = {"m": _profile("m", 1.0, 1.0, 50, 1)}
    twice = [Demand("m", 5.0, 50.0), Demand("m", 7.0, 80.0)]
    with pytest.raises(ValueError, match="m "):
        resolve(name).packer(twice, _fleet(FREE, 1), profiles, Plan())
