"""The configuration program: what it promises, what it keeps, where it stops."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planning.gpulet_profiles import MODELS, profiles
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Plan
from interlace.packing.bounds import lower_bound
from interlace.planning.scenario import Scenario
from interlace.planning.trial import try_plan
from interlace.policy.catalog import CATALOG
from interlace.policy.planners.patterns import Patterns

SHARES = (20, 40, 50, 60, 80, 100)
GPU = Gpu("", "2080ti", 68, 11 * 10**9, SHARES)
PROFILES = profiles(SHARES)


def demand_of(**rates: float) -> list[Demand]:
    return [Demand(name, rate, MODELS[name][0]) for name, rate in rates.items()]


def used(plan: Plan) -> int:
    return len({part.gpu for part in plan.partitions})


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(MODELS)), st.floats(5.0, 600.0), min_size=1))
def test_plans_serve_all_and_stay_above_the_bound(rates: dict[str, float]) -> None:
    demand = demand_of(**rates)
    there = uniform_fleet(GPU, 24)
    plan = Patterns()(demand, there, PROFILES, Plan())
    assert not plan.unserved_rows_per_s
    assert used(plan) >= lower_bound(demand, GPU, PROFILES).gpus
    for part in plan.partitions:
        assert len(part.slots) == len({slot.model for slot in part.slots})


def test_almost_every_plan_keeps_its_promises_before_it_is_tried() -> None:
    """What a partition is asked for is an estimate: `planning.plan_search` simulates it."""
    random = Random(5)
    there, broken = uniform_fleet(GPU, 24), 0
    for _ in range(20):
        names = random.sample(sorted(MODELS), random.randint(1, len(MODELS)))
        demand = demand_of(**{name: random.uniform(5.0, 600.0) for name in names})
        plan = Patterns()(demand, there, PROFILES, Plan())
        scenario = Scenario(tuple(demand), GPU, PROFILES)
        trial = try_plan(plan, there, scenario, CATALOG["interlace"], requests=3_000)
        assert min(one.attainment for one in trial.models.values()) > 0.95
        broken += bool(trial.broken)
    assert broken <= 2


def test_burstier_arrivals_cost_more() -> None:
    calm = demand_of(res=900.0, be=2000.0, goo=1500.0)
    wild = [replace(one, cv=4.0) for one in calm]
    there = uniform_fleet(GPU, 40)
    plans = [Patterns()(demand, there, PROFILES, Plan()) for demand in (calm, wild)]
    assert not any(plan.unserved_rows_per_s for plan in plans)
    assert used(plans[0]) < used(plans[1])


def test_a_plan_changes_little_when_little_changed() -> None:
    before = demand_of(res=300.0, vgg=200.0, be=600.0, mob=400.0, den=90.0)
    there = uniform_fleet(GPU, 12)
    old = Patterns()(before, there, PROFILES, Plan())
    more = [replace(one, rows_per_s=one.rows_per_s * 1.01) for one in before]
    kept = Patterns()(more, there, PROFILES, old)
    fresh = Patterns()(more, there, PROFILES, Plan())
    assert used(kept) <= used(fresh), "staying close costs no accelerator"
    homes = {
        (p.id, p.gpu, p.share_pct, frozenset(s.model for s in p.slots)) for p in old.partitions
    }
    same = sum(
        (p.id, p.gpu, p.share_pct, frozenset(s.model for s in p.slots)) in homes
        for p in kept.partitions
    )
    assert same >= 0.6 * len(kept.partitions)


def test_a_limit_serves_what_it_can_and_says_what_not() -> None:
    demand = demand_of(res=2000.0, vgg=1500.0)
    plan = Patterns()(demand, uniform_fleet(GPU, 2), PROFILES, Plan())
    assert used(plan) == 2
    for one in demand:
        served = sum(s.rows_per_s for p in plan.partitions for s in p.slots if s.model == one.model)
        left = plan.unserved_rows_per_s.get(one.model, 0.0)
        assert served + left == pytest.approx(one.rows_per_s, rel=1e-6)
    assert sum(plan.unserved_rows_per_s.values()) > 0
    assert all(plan.reasons[model] for model in plan.unserved_rows_per_s)


def test_walls_keep_models_apart() -> None:
    """Weights of 12 GB fit no 10 GB slice: a MIG plan gives that model a larger one."""
    mig = GPU_KINDS["a100-mig"]
    shares = mig.shares_pct
    known = {
        name: replace(profiles(shares)[name], weights_bytes=size)
        for name, size in (("res", 12 * 10**9), ("mob", 10**8))
    }
    plan = Patterns()(demand_of(res=50.0, mob=100.0), uniform_fleet(mig, 4), known, Plan())
    assert not plan.unserved_rows_per_s
    walls = dict(mig.walls)
    for part in plan.partitions:
        need = sum(
            known[s.model].weights_bytes + known[s.model].activation_bytes for s in part.slots
        )
        assert need <= walls[part.share_pct]


def test_many_models_are_packed_in_pools_like_few() -> None:
    names = {f"{name}{i}": name for i in range(8) for name in MODELS}
    known = {alias: PROFILES[name] for alias, name in names.items()}
    demand = [Demand(alias, 20.0, MODELS[name][0]) for alias, name in names.items()]
    there = uniform_fleet(GPU, 40)
    large = Patterns(apart=10)(demand, there, known, Plan())
    assert not large.unserved_rows_per_s
    for gpu in there.gpus:
        assert gpu.legal([p.share_pct for p in large.partitions if p.gpu == gpu.id])
    bound = lower_bound(demand, GPU, known)
    assert bound.gpus <= used(large) <= 3 * bound.gpus


def test_a_rate_that_no_fleet_serves_costs_no_more_memory_than_the_fleet() -> None:
    demand = demand_of(le=1e13, ssd=30.0)
    plan = Patterns(apart=0)(demand, uniform_fleet(GPU, 2), PROFILES, Plan())
    assert len(plan.partitions) <= 10
    assert plan.unserved_rows_per_s["le"] > 0.99e13
    assert "the accelerators are full" in plan.reasons["le"]


def test_a_model_that_is_almost_never_asked_for_has_a_place_in_a_pool() -> None:
    demand = [Demand("le", 1e-149, 5.0), Demand("vgg", 0.0, MODELS["vgg"][0])]
    plan = Patterns(apart=0)(demand, uniform_fleet(GPU, 1), PROFILES, Plan())
    assert not plan.unserved_rows_per_s
    assert {slot.model for part in plan.partitions for slot in part.slots} >= {"le"}
