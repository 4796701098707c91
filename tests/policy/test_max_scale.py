"""The largest multiple of the demand that a planner still serves, in few questions to it."""

from collections.abc import Sequence

import pytest

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.policy.planners.max_scale import MaxScale
from interlace.testing.worlds import FREE, fleet_of, scaled_profile

PROFILES = {"m": scaled_profile("m", 2.0, 0.5, 40, 10)}


@pytest.mark.parametrize("most_rps", [60.0, 250.0, 5.0])
def test_the_plan_is_the_one_of_the_largest_factor_and_nothing_is_planned_twice(
    most_rps: float,
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
    plan = scale([Demand("m", 100.0, 100.0)], fleet_of(FREE, 1), PROFILES, Plan())
    assert len(asked) == len(set(asked))
    assert plan.headroom == pytest.approx(max(0.1, most_rps / 100.0), rel=0.01)
    planned = plan.partitions[0].slots[0].rows_per_s
    assert planned == pytest.approx(max(10.0, most_rps) if most_rps > 10 else most_rps, rel=0.01)
