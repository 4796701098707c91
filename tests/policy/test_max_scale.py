"""The largest multiple of the demand that a planner still serves, in few questions to it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.policy.planners.max_scale import MaxScale
from interlace.testing.worlds import FREE, fleet_of, scaled_profile

PROFILES = {"m": scaled_profile("m", 2.0, 0.5, 40, 10)}


@pytest.mark.parametrize("standing", [None, 0.2, 2.0])
@pytest.mark.parametrize("most_rps", [60.0, 250.0, 5.0])
def test_the_plan_is_the_one_of_the_largest_factor_and_nothing_is_planned_twice(
    most_rps: float, standing: float | None
) -> None:
    asked: list[float] = []

    def up_to(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
        (one,) = demand
        asked.append(one.rows_per_s)
        slot = Slot(one.model, 1, min(one.rows_per_s, most_rps))
        over = one.rows_per_s - most_rps
        short = {one.model: over} if over > 0 else {}
        return Plan((Partition("g0:0", "g0", 100, (slot,)),), short)

    scale = MaxScale(up_to, lowest=0.1, highest=10.0, steps=10)
    current = Plan(headroom=standing)
    plan = scale([Demand("m", 100.0, 100.0)], fleet_of(FREE, 1), PROFILES, current)
    assert len(asked) == len(set(asked))
    assert plan.headroom == pytest.approx(max(0.1, most_rps / 100.0), rel=0.01)
    planned = plan.partitions[0].slots[0].rows_per_s
    assert planned == pytest.approx(max(10.0, most_rps) if most_rps > 10 else most_rps, rel=0.01)


@pytest.mark.parametrize("most_rps", [197.0, 200.0, 203.0])
def test_near_what_stands_the_same_factor_takes_half_the_questions(most_rps: float) -> None:
    asked: list[float] = []

    def up_to(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
        (one,) = demand
        asked.append(one.rows_per_s)
        slot = Slot(one.model, 1, one.rows_per_s)
        short = {"m": 1.0} if one.rows_per_s > most_rps else {}
        return Plan((Partition("g0:0", "g0", 100, (slot,)),), short)

    scale, demand = MaxScale(up_to, 0.1, 10.0, steps=8), [Demand("m", 100.0, 100.0)]
    afresh = scale(demand, fleet_of(FREE, 1), PROFILES, Plan())
    first = len(asked)
    assert scale(demand, fleet_of(FREE, 1), PROFILES, replace(afresh, headroom=2.0)) == afresh
    assert len(asked) - first <= (first + 1) / 2


def test_models_that_fit_beside_each_other_are_not_asked_about_one_by_one() -> None:
    names = [f"m{number}" for number in range(9)]
    asked: list[list[str]] = []

    def all_but_m4(
        demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        asked.append([one.model for one in demand])
        slots = tuple(Slot(d.model, 1, d.rows_per_s) for d in demand if d.model != "m4")
        short = {d.model: d.rows_per_s for d in demand if d.model == "m4"}
        return Plan((Partition("g0:0", "g0", 100, slots),), short)

    profiles = {name: scaled_profile(name, 2.0, 0.5, 40, 10) for name in names}
    demand = [Demand(name, 10.0, 100.0) for name in names]
    plan = MaxScale(all_but_m4, steps=5)(demand, fleet_of(FREE, 1), profiles, Plan())
    assert plan.unserved_rows_per_s == {"m4": 10.0}
    others = [name for name in names if name != "m4"]
    assert asked == [names, ["m4"], *[others] * 5]
