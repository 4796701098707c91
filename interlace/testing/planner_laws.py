"""What planners keep, which cut a whole fleet, and packers, which use few accelerators."""

from __future__ import annotations

from dataclasses import replace
from math import isclose
from typing import Final

from hypothesis import strategies as st

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile, Profiles
from interlace.packing.bounds import lower_bound
from interlace.perf.latency import surface
from interlace.perf.memory import holds
from interlace.policy.base import System
from interlace.policy.catalog import resolve as row
from interlace.testing.law import law, single_case
from interlace.testing.worlds import (
    FREE,
    GOOD,
    PROFILES_OF_ODD,
    PlanningCase,
    fleet_of,
    planning_cases,
    served_rows_per_s,
    unplannable,
)

_CLOSE: Final = 1e-6


@law(planning_cases(), examples=12)
def plans_are_legal(system: System, case: PlanningCase) -> None:
    """Shares may stand side by side, memory holds the models; what has no place has a reason."""
    demand, fleet, profiles = case
    plan = system.planner(demand, fleet, profiles, Plan())
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
    hosted = {slot.model for p in plan.partitions for slot in p.slots}
    homeless = {one.model for one in demand} - hosted
    assert all(plan.reasons.get(model) for model in homeless | plan.unserved_rows_per_s.keys())


@law(planning_cases(), examples=6)
def planners_are_functions(system: System, case: PlanningCase) -> None:
    """The same question has the same answer."""
    demand, fleet, profiles = case
    plan = system.planner(demand, fleet, profiles, Plan())
    assert plan == system.planner(demand, fleet, profiles, Plan())


@law(planning_cases(), examples=12, holds_for=lambda system: system.cyclic_planner)
def planned_cycles_keep_every_slo(system: System, case: PlanningCase) -> None:
    demand, fleet, profiles = case
    cycles_keep_slos(system.planner(demand, fleet, profiles, Plan()), demand, profiles)


def cycles_keep_slos(plan: Plan, demand: list[Demand], profiles: Profiles) -> None:
    """Executions fit in the cycle; a wait of one cycle and one execution is within every SLO."""
    slo_ms = {one.model: one.slo_ms for one in demand}
    for p in plan.partitions:
        turns = [s for s in p.slots if s.rows_per_s > 0]  # a rate of 0 is a place, not a promise
        runs = {s.model: surface(profiles[s.model]).latency_ms(s.batch, p.share_pct) for s in turns}
        assert sum(runs.values()) <= p.duty_ms * (1 + _CLOSE) or not turns
        assert all(p.duty_ms + ms <= slo_ms[m] * (1 + _CLOSE) for m, ms in runs.items())
        assert all(s.batch * 1000.0 / p.duty_ms >= s.rows_per_s * (1 - _CLOSE) for s in turns)


@law(unplannable())
def what_cannot_be_planned_has_a_reason_and_harms_no_other(system: System, odd: Demand) -> None:
    fine = Demand("fine", 20.0, 60.0)
    for planner in (system.planner, system.packer):
        plan = planner([fine, odd], fleet_of(FREE, 2), PROFILES_OF_ODD, Plan())
        assert odd.model in plan.unserved_rows_per_s
        assert len(plan.reasons[odd.model]) > 10, "not a reason a user can act on"
        if odd.rows_per_s != 1e12:
            assert served_rows_per_s(plan, "fine") >= fine.rows_per_s * (1 - _CLOSE)


@single_case
def shares_below_the_smallest_measured_are_not_used(system: System) -> None:
    points = {key: p for key, p in GOOD.points.items() if key[1] >= 40}
    fleet = fleet_of(replace(FREE, shares_pct=(10, *FREE.shares_pct)), 1)
    known = {"m": replace(GOOD, points=points)}
    plan = system.planner([Demand("m", 10.0, 100.0)], fleet, known, Plan())
    assert plan.partitions and all(p.share_pct >= 40 for p in plan.partitions)
    assert not plan.unserved_rows_per_s


@single_case
def a_model_asked_for_twice_is_an_error(system: System) -> None:
    twice = [Demand("m", 5.0, 50.0), Demand("m", 7.0, 80.0)]
    for planner in (system.planner, system.packer):
        try:
            planner(twice, fleet_of(FREE, 1), PROFILES_OF_ODD, Plan())
        except ValueError as error:
            assert "m is asked for 2 times" in str(error)
        else:
            raise AssertionError("two demands of one model were taken")


@single_case
def no_demand_and_no_fleet_have_plans(system: System) -> None:
    for planner in (system.planner, system.packer):
        assert not planner([], fleet_of(FREE, 1), {}, Plan()).unserved_rows_per_s
        assert planner([], Fleet(()), {}, Plan()).partitions == ()
        nowhere = planner([Demand("m", 5.0, 50.0)], Fleet(()), PROFILES_OF_ODD, Plan())
        assert nowhere.partitions == () and nowhere.unserved_rows_per_s == {"m": 5.0}
        assert nowhere.reasons["m"]
    idle = system.packer([Demand("m", 0.0, 50.0)], fleet_of(FREE, 1), PROFILES_OF_ODD, Plan())
    assert not idle.unserved_rows_per_s


_worlds = planning_cases(models=4, least_rows_per_s=0.5)
_few = planning_cases(models=3, gpus=2, least_rows_per_s=0.5)


def _cyclic(system: System) -> bool:
    return system.cyclic_packer


@law(_worlds, examples=12)
def demand_is_conserved_and_partitions_fit_side_by_side(system: System, case: PlanningCase) -> None:
    demand, fleet, profiles = case
    plan = system.packer(demand, fleet, profiles, Plan())
    for gpu in fleet.gpus:
        here = [p for p in plan.partitions if p.gpu == gpu.id]
        assert gpu.legal([p.share_pct for p in here])
        assert holds(gpu, [(p.share_pct, [s.model for s in p.slots]) for p in here], profiles)
    assert {p.gpu for p in plan.partitions} <= {gpu.id for gpu in fleet.gpus}
    assert len({p.id for p in plan.partitions}) == len(plan.partitions)
    for one in demand:
        left = plan.unserved_rows_per_s.get(one.model, 0.0)
        planned = served_rows_per_s(plan, one.model) + left
        assert isclose(planned, one.rows_per_s, rel_tol=1e-5, abs_tol=1e-5)
        assert left == 0.0 or plan.reasons[one.model]


@law(_worlds, examples=12)
def packers_are_functions_and_above_the_lower_bound(system: System, case: PlanningCase) -> None:
    """The same question has the same answer, which takes no fewer than any scheduler needs."""
    demand, fleet, profiles = case
    plan = system.packer(demand, fleet, profiles, Plan())
    assert plan == system.packer(demand, fleet, profiles, Plan())
    full = [one for one in demand if one.model not in plan.unserved_rows_per_s]
    used = {p.gpu for p in plan.partitions}
    assert len(used) >= lower_bound(full, fleet.gpus[0], profiles).gpus


@law(_worlds, examples=25, holds_for=_cyclic)
def packed_cycles_keep_every_slo(system: System, case: PlanningCase) -> None:
    demand, fleet, profiles = case
    cycles_keep_slos(system.packer(demand, fleet, profiles, Plan()), demand, profiles)


@law(_few, examples=10, holds_for=_cyclic)
def none_packs_what_exhaustive_search_shows_impossible(system: System, case: PlanningCase) -> None:
    demand, fleet, profiles = case
    best = row("ideal").packer(demand, fleet, profiles, Plan())
    if not best.unserved_rows_per_s or any("limit" in note for note in best.notes):
        return
    assert system.packer(demand, fleet, profiles, Plan()).unserved_rows_per_s


@law(st.tuples(_worlds, st.sampled_from([0.5, 2.0, 4.0])), examples=10, holds_for=_cyclic)
def plans_scale_with_the_machine(system: System, case: tuple[PlanningCase, float]) -> None:
    """A machine twice as fast serves twice the rates within half the SLOs by the same plan."""
    (demand, fleet, profiles), factor = case
    plan = system.packer(demand, fleet, profiles, Plan())
    faster = [
        replace(d, rows_per_s=d.rows_per_s * factor, slo_ms=d.slo_ms / factor) for d in demand
    ]
    known = {model: _quicker(profile, factor) for model, profile in profiles.items()}
    scaled = system.packer(faster, fleet, known, Plan())
    assert _shape(plan) == _shape(scaled)
    assert set(plan.unserved_rows_per_s) == set(scaled.unserved_rows_per_s)


def _shape(plan: Plan) -> list[object]:
    return [(p.gpu, p.share_pct, [s.model for s in p.slots]) for p in plan.partitions]


def _quicker(profile: Profile, factor: float) -> Profile:
    points = {
        key: LatencyPoint(p.median_ms / factor, p.p95_ms / factor, p.p99_ms / factor, p.samples)
        for key, p in profile.points.items()
    }
    return replace(profile, points=points)
