"""What a packer keeps, which plans for as few accelerators as will do."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

from hypothesis import strategies as st

from interlace.core.plan import Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.packing.bounds import lower_bound
from interlace.perf.memory import holds
from interlace.policy.base import System
from interlace.policy.catalog import resolve as row
from interlace.testing.law import law
from interlace.testing.planner_laws import cycles_keep_slos
from interlace.testing.worlds import PlanningCase, planning_cases, served_rows_per_s

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
