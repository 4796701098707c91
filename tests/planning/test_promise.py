"""The plan that is told is one that the engine keeps; what stands stays; what helps is tried."""

from dataclasses import replace
from functools import cache

import pytest

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.plan import Demand, Partition, Plan, PlanMoves, Slot, moves
from interlace.core.profile import LatencyPoint, Profile
from interlace.planning.capacity_plan import CapacityPlan, plan
from interlace.planning.plan_search import search_plan
from interlace.planning.scenario import Scenario
from interlace.planning.simulated_plan import SimulatedPlan
from interlace.planning.trial import TrialRuns
from interlace.planning.what_if import advice
from interlace.policy.catalog import CATALOG

GPU = GPU_KINDS["a100-mig"]
OURS = CATALOG["interlace"]


def _profile(name: str, fixed_ms: float, row_ms: float, knee_pct: float) -> Profile:
    points = {}
    for share in GPU.shares_pct:
        slower = max(1.0, knee_pct / share)
        for batch in (1, 2, 4, 8, 16):
            ms = (fixed_ms + row_ms * batch) * slower
            points[batch, share] = LatencyPoint(ms, ms, ms, 1)
    return Profile(name, "d", GPU.kind, 10**6, 10**6, points)


def _scenario(load: float = 1.0, limit: int = 64) -> Scenario:
    profiles = {
        "a": _profile("a", 4.0, 1.0, 60.0),
        "b": _profile("b", 10.0, 3.0, 30.0),
        "c": _profile("c", 2.0, 0.5, 80.0),
    }
    rates = {"a": (250.0, 60.0), "b": (75.0, 150.0), "c": (450.0, 30.0)}
    demand = tuple(Demand(m, load * rate, slo, 16) for m, (rate, slo) in rates.items())
    return Scenario(demand, GPU, profiles, limit=limit)


@cache
def _planned(load: float = 1.0, limit: int = 64) -> CapacityPlan:
    return plan(_scenario(load, limit))


@cache
def _kept(load: float = 1.0, limit: int = 64) -> SimulatedPlan:
    return search_plan(_scenario(load, limit), OURS)


def test_what_is_told_is_kept_under_seeds_that_the_plan_did_not_see() -> None:
    scenario = _scenario()
    told = _kept()
    assert told.kept
    runs = TrialRuns(scenario, OURS)
    runs.play(told.plan, told.fleet, scenario.demand, 10.0, 500)
    for one in runs.models().values():
        assert one.interval(4.0)[1] >= 0.99


def test_the_trial_that_is_told_has_seeds_that_no_choice_between_plans_has_seen() -> None:
    assert min(_kept().trial.seeds) >= 10_000
    assert _kept().trial.load == 1.0


def test_a_model_of_rare_bursts_is_tried_until_some_have_come() -> None:
    often, rare = Demand("often", 4_000.0, 60.0), Demand("rare", 60.0, 60.0, cv=2.0)
    profiles = {one: _profile(one, 2.0, 0.1, 40.0) for one in ("often", "rare")}
    known = Scenario((often, rare), GPU, profiles, limit=8)
    sent = [
        search_plan(replace(known, demand=(often, one)), OURS).trial.models["rare"]
        for one in (rare, replace(rare, cv=1.0))
    ]
    assert sent[0].sent > 1.2 * sent[1].sent
    assert sent[0].sent * rare.cv**-2 > 180.0


def test_beside_a_model_that_nobody_serves_promises_are_told_at_the_load_asked() -> None:
    """Plans that break at more load only are not called broken."""
    for load in (1.0, 3.0):
        scenario = _scenario(load)
        hopeless = Demand("c", 900.0, 0.1, 16)
        asked = (*(one for one in scenario.demand if one.model != "c"), hopeless)
        told = search_plan(replace(scenario, demand=asked), OURS)
        assert told.plan.underserved == {"c"}
        assert told.trial.load == 1.0 or not told.trial.broken


def test_no_more_accelerators_than_the_packer_asks_for() -> None:
    scenario = _scenario(load=2.0)
    packed = search_plan(scenario, replace(OURS, tried=False))
    assert packed.kept
    assert _kept(2.0).gpus <= packed.gpus


def test_a_limit_that_does_not_bind_changes_nothing() -> None:
    needed = _kept().gpus
    plans = [_kept(limit=limit).plan for limit in (needed, 64)]
    assert all(one == plans[0] for one in plans)


def test_the_same_question_has_the_same_answer() -> None:
    assert search_plan(_scenario(), OURS) == _kept()


def test_rates_told_are_the_rates_asked() -> None:
    scenario = _scenario(2.0)
    slots = [slot for part in _kept(2.0).plan.partitions for slot in part.slots]
    for one in scenario.demand:
        planned = sum(slot.rows_per_s for slot in slots if slot.model == one.model)
        assert planned == pytest.approx(one.rows_per_s, rel=1e-3)


def test_an_unchanged_question_moves_nothing() -> None:
    before = _planned()
    after = plan(_scenario(), current=before.plan)
    count = len(before.plan.partitions)
    assert after.moved == PlanMoves(stay=count, move=0, appear=0, go=0)
    assert after.gpus == before.gpus


@pytest.mark.parametrize("load", [pytest.param(0.9, marks=pytest.mark.long), 1.1])
def test_a_tenth_more_or_less_moves_little(load: float) -> None:
    before = _planned(2.0)
    after = plan(_scenario(2.0 * load), current=before.plan)
    assert after.kept
    assert after.moved is not None
    assert after.moved.stay >= 2 * (after.moved.move + after.moved.go)


def test_moves_are_counted() -> None:
    def part(gpu: str, share: int, *models: str) -> Partition:
        return Partition("p", gpu, share, tuple(Slot(m, 1, 1.0) for m in models))

    before = [part("g0", 50, "a"), part("g0", 50, "b"), part("g1", 20, "c"), part("g1", 20, "c")]
    after = [part("g0", 50, "a"), part("g1", 50, "b"), part("g1", 20, "c"), part("g1", 40, "c")]
    assert moves(before, after) == PlanMoves(stay=2, move=1, appear=1, go=1)
    assert moves(before, before) == PlanMoves(4, 0, 0, 0)


def test_what_helps_is_told_only_where_something_is_wrong() -> None:
    short = _planned(4.0, limit=1)
    assert not short.kept
    assert "% are asked for" in advice(short, OURS) or "are not served" in advice(short, OURS)
    assert advice(_planned(), OURS) == ""


def test_a_model_that_is_too_slow_is_told_the_slo_that_would_do() -> None:
    scenario = _scenario()
    late = tuple(replace(d, slo_ms=5.0) if d.model == "b" else d for d in scenario.demand)
    found = plan(replace(scenario, demand=late))
    assert set(found.plan.unserved_rows_per_s) == {"b"}
    said = advice(found, OURS)
    slo_ms = float(said.partition("kept within ")[2].split(" ms")[0])
    slower = tuple(replace(d, slo_ms=slo_ms) if d.model == "b" else d for d in scenario.demand)
    assert plan(replace(scenario, demand=slower)).kept


def test_what_stands_on_accelerators_that_are_not_there_does_not_stay() -> None:
    before = _planned(limit=4)
    away = tuple(replace(part, gpu=f"other{part.gpu}") for part in before.plan.partitions)
    after = plan(_scenario(limit=4), current=Plan(away))
    assert after.kept
    assert after.moved is not None
    assert after.moved.stay == 0
