"""A plan that is followed: pinned for what it knows, extended for what it does not."""

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.planning.follower import PlanFollower
from interlace.policy.catalog import resolve
from tests.builders import line_profile

GPU = Gpu("cpu0", "test", 4, 10**10, (25, 50, 75, 100))
PARTS = (
    Partition("p0", "cpu0", 75, (Slot("cat", 8, 5.0),)),
    Partition("p1", "cpu0", 25, (Slot("dog", 4, 8.0),)),
)


def by_half(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    """Everybody alone at 50 % in batches of two."""
    parts = [Partition(d.model, "cpu0", 50, (Slot(d.model, 2, d.rows_per_s),)) for d in demand]
    return Plan(tuple(parts))


def plan(*demand: Demand, parts: tuple[Partition, ...] = PARTS) -> Plan:
    profiles = {one.model: line_profile(one.model) for one in demand}
    return PlanFollower(parts, by_half)(demand, Fleet((GPU,)), profiles, Plan())


def places(made: Plan) -> dict[str, list[tuple[str, int]]]:
    return {p.id: [(slot.model, slot.batch) for slot in p.slots] for p in made.partitions}


@pytest.mark.parametrize("rate_rps", [0.0, 5.0, 5000.0])
def test_rates_move_nothing(rate_rps: float) -> None:
    made = plan(Demand("cat/1#0", rate_rps, 100.0), Demand("dog/1#0", 1.0, 100.0))
    assert places(made) == {"p0": [("cat/1#0", 8)], "p1": [("dog/1#0", 4)]}
    assert not made.unserved_rows_per_s


def test_what_is_not_deployed_leaves_its_place_empty() -> None:
    assert places(plan(Demand("dog/1#3", 1.0, 100.0))) == {"p0": [], "p1": [("dog/1#3", 4)]}


def test_both_versions_have_the_place_during_a_reload() -> None:
    made = plan(Demand("cat/1#0", 1.0, 100.0), Demand("cat/1#1", 1.0, 100.0, max_batch=2))
    assert places(made)["p0"] == [("cat/1#0", 8), ("cat/1#1", 2)]


def test_guests_take_turns_in_the_smallest_partition_that_is_large_enough() -> None:
    made = plan(Demand("cat/1#0", 1.0, 100.0), Demand("owl/1#0", 3.0, 100.0))
    assert places(made) == {"p0": [("cat/1#0", 8), ("owl/1#0", 2)], "p1": []}


def test_guests_without_a_share_that_is_in_time_are_unserved_with_the_reason() -> None:
    small = (replace(PARTS[0], share_pct=25, slots=(Slot("cat", 1, 1.0),)),)
    made = plan(Demand("cat/1#0", 1.0, 100.0), Demand("owl/1#0", 3.0, 100.0), parts=small)
    assert made.unserved_rows_per_s == {"owl/1#0": 3.0}
    assert "plan that is followed" in made.reasons["owl/1#0"]


def test_without_a_model_of_the_plan_the_row_plans() -> None:
    made = plan(Demand("owl/1#0", 3.0, 100.0))
    assert places(made) == {"owl/1#0": [("owl/1#0", 2)]}


def test_it_travels_to_the_process_that_plans() -> None:
    pinned = PlanFollower(PARTS, resolve("interlace").planner)
    assert pickle.loads(pickle.dumps(pinned)) == pinned
