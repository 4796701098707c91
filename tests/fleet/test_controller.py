"""What nodes are told, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from interlace.core.hardware import Fleet, Gpu
from interlace.core.node import Assignment, ModelOutlook, NodeDescription, NodeModel, NodeState
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.fleet.controller import Controller
from interlace.fleet.fleet_gpus import models_of, node_of, own_models_of
from interlace.policy.base import System
from interlace.policy.catalog import resolve
from interlace.runtime.clock import SimClock
from interlace.runtime.plan_solver import InlinePlanSolver
from interlace.testing.worlds import FREE, line_profile

PROFILES = {name: line_profile(name, 2.0, 1.0) for name in ("m", "k")}


def described(name: str, gpus: int = 2, began: int = 1, zone: str = "") -> NodeDescription:
    own = tuple(replace(FREE, id=f"gpu{i}", memory_bytes=10**9) for i in range(gpus))
    return NodeDescription(name, zone, began, "0", True, own)


def replicas(plan: Plan) -> dict[str, set[str]]:
    """The nodes where each model of a plan stands."""
    found: dict[str, set[str]] = {}
    for part in plan.partitions:
        for model in models_of([part]):
            found.setdefault(model, set()).add(node_of(part.gpu))
    return found


def planned_by(place: Callable[[list[str], Sequence[Demand]], list[Partition]]) -> System:
    """Its planner makes what ``place`` says of these accelerators and this demand."""

    def planner(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
        return Plan(tuple(place([gpu.id for gpu in fleet.gpus], demand)))

    return replace(resolve("interlace"), planner=planner)


class Told:
    """A controller in virtual time, and how often it changed its mind."""

    def __init__(
        self,
        *nodes: str,
        system: System | None = None,
        term: int = 1,
        gpus: int = 2,
        zone: str = "",
        standing: Mapping[str, Assignment] | None = None,
    ) -> None:
        self.clock = SimClock()
        used = system or resolve("interlace")
        self.controller = Controller(
            self.clock,
            used,
            lambda system: InlinePlanSolver(system, self.clock, 50.0),
            term,
            {name: described(name, gpus, zone=zone) for name in nodes},
            standing=standing,
        )
        self.changes = 0
        self.controller.on_assignments = self._changed
        self.controller.start()

    def _changed(self) -> None:
        self.changes += 1

    def deploy(self, **rates: float) -> None:
        self.controller.deploy(
            {
                name: {
                    "k": NodeModel(Demand(name, rate, 50.0), f"digest of {name}", PROFILES[name])
                }
                for name, rate in rates.items()
            }
        )
        self.run(200.0)

    def run(self, for_ms: float) -> None:
        self.clock.run(self.clock.now_ms() + for_ms)

    def load(self, node: str, for_s: int, **rates: int) -> None:
        """A node says each second that so many requests a second came."""
        arrived = dict.fromkeys(rates, 0)
        for number in range(for_s + 1):
            models = {
                name: ModelOutlook(5.0, 5.0, 1.0, 50.0, arrived=count)
                for name, count in arrived.items()
            }
            self.controller.heard(node, NodeState(1, self.clock_number(number), models))
            arrived = {name: count + rates[name] for name, count in arrived.items()}
            self.run(1000.0)

    def clock_number(self, number: int) -> int:
        return int(self.clock.now_ms()) + number


def test_every_model_stands_somewhere_and_nodes_are_told_in_their_own_names() -> None:
    told = Told("a", "b")
    told.deploy(m=100.0, k=50.0)
    assert set(replicas(told.controller.plan)) == {"m", "k"}
    for name in "ab":
        assignment = told.controller.assignment(name)
        assert assignment is not None and assignment.revision.term == 1
        assert {part.gpu for part in assignment.plan.partitions} <= {"gpu0", "gpu1"}
        served = {slot.model for part in assignment.plan.partitions for slot in part.slots}
        assert assignment.models == {model: f"digest of {model}" for model in served}


def test_nothing_is_told_before_there_is_a_plan() -> None:
    told = Told("a", "b")
    told.controller.joined("c", described("c"))
    assert all(told.controller.assignment(name) is None for name in "abc")
    assert told.controller.assignment("unknown") is None


def test_what_a_lost_node_served_stands_elsewhere() -> None:
    told = Told("a", "b", "c")
    told.deploy(m=100.0, k=50.0)
    before = {name: told.controller.assignment(name) for name in "bc"}
    told.controller.left("a")
    told.run(200.0)
    assert told.controller.assignment("a") is None
    assert set(replicas(told.controller.plan)) == {"m", "k"}
    assert not any("a" in nodes for nodes in replicas(told.controller.plan).values())
    for name, old in before.items():
        new = told.controller.assignment(name)
        assert new is not None and old is not None
        assert new == old or new.revision > old.revision


def test_what_stood_on_a_lost_node_alone_stands_elsewhere_before_there_is_a_plan() -> None:
    told = Told("a", "b", system=placed("a/gpu0", "b/gpu0"), gpus=1, zone="rack")
    told.deploy(m=10.0, k=10.0)
    first = {name: own_models(told, name) for name in "ab"}
    assert sorted(map(len, first.values())) == [1, 1]
    told.controller.left("a")  # no time passes
    assert own_models(told, "b") == {"m", "k"}
    assert told.controller.planning


def test_a_plan_for_a_node_that_is_lost_meanwhile_is_given_up_for_one_without_it() -> None:
    told = Told("a", "b", "c", gpus=1)
    told.deploy(m=100.0, k=50.0)
    told.controller.left("a")
    told.run(40.0)  # of the 50 ms that a plan takes
    told.controller.left("b")
    told.run(20.0)
    assert told.controller.planning, "what was asked first is not waited for, nor answers"
    told.run(35.0)
    assert not told.controller.planning
    assert own_models(told, "c") == {"m", "k"}


def own_models(told: Told, node: str) -> set[str]:
    assignment = told.controller.assignment(node)
    return set() if assignment is None else own_models_of(assignment.plan.partitions)


def test_a_node_that_joins_is_given_work() -> None:
    told = Told("a")
    told.deploy(m=4000.0)
    assert replicas(told.controller.plan) == {"m": {"a"}}
    told.controller.joined("b", described("b"))
    told.run(200.0)
    assert replicas(told.controller.plan) == {"m": {"a", "b"}}


def test_a_node_that_comes_back_is_told_nothing_before_a_plan_has_it() -> None:
    told = Told("a", "b", gpus=1)
    told.deploy(m=2000.0)
    told.controller.left("b")
    told.controller.joined("b", described("b", gpus=1))  # while the plan without it is made
    seen = [told.controller.assignment("b")]
    told.controller.on_assignments = lambda: seen.append(told.controller.assignment("b"))
    told.run(1_000.0)
    first = next(one for one in seen if one is not None)
    assert set(first.models) == {"m"}


def test_a_node_that_joins_brings_its_zone() -> None:
    def first_two(gpus: list[str], demand: Sequence[Demand]) -> list[Partition]:
        return [Partition(f"p{gpu}", gpu, 100, (Slot("m", 8, 10.0),)) for gpu in gpus[:2]]

    told = Told("a", system=planned_by(first_two), gpus=1)
    told.controller.left("a")
    for name, zone in (("b", "left"), ("c", "left"), ("d", "right")):
        told.controller.joined(name, described(name, gpus=1, zone=zone))
    told.deploy(m=10.0)
    assert "d" in replicas(told.controller.plan)["m"]


def test_equal_accelerators_keep_what_stands_there_wherever_the_planner_puts_it() -> None:
    turns: list[int] = []

    def by_turns(gpus: list[str], demand: Sequence[Demand]) -> list[Partition]:
        turns.append(0)
        pairs = zip(gpus[:: (-1) ** len(turns)], demand, strict=True)
        return [Partition(gpu, gpu, 100, (Slot(one.model, 8, 10.0),)) for gpu, one in pairs]

    told = Told("a", "b", system=planned_by(by_turns), gpus=1)
    told.deploy(m=10.0, k=10.0)
    stands = told.controller.plan.partitions
    told.controller.deploy({})
    told.run(200.0)
    assert len(turns) == 2 and told.controller.plan.partitions == stands


def test_what_stands_does_not_gather_replicas_in_a_zone() -> None:
    def gathered(gpus: list[str], demand: Sequence[Demand]) -> list[Partition]:
        where = [(gpus[0], "m"), (gpus[1], "m"), (gpus[-1], "k")]
        return [Partition(f"{gpu}{m}", gpu, 50, (Slot(m, 8, 10.0),)) for gpu, m in where]

    told = Told("a", "b", system=planned_by(gathered), gpus=1, zone="rack")
    told.deploy(m=10.0, k=10.0)
    assert replicas(told.controller.plan)["m"] == {"a", "b"}
    told.controller.joined("c", described("c", gpus=1, zone="other"))
    told.run(200.0)
    apart = told.controller.plan.partitions
    assert "c" in replicas(told.controller.plan)["m"]
    told.controller.deploy({})
    told.run(200.0)
    assert told.controller.plan.partitions == apart, "what is apart stays where it is"


def test_rates_of_all_nodes_make_a_new_plan() -> None:
    told = Told("a", "b")
    told.deploy(m=10.0, k=10.0)
    changes = told.changes
    told.load("a", 20, m=900, k=1)
    assert told.changes > changes


def test_the_same_plan_again_is_not_told_again() -> None:
    told = Told("a", "b")
    told.deploy(m=100.0)
    changes = told.changes
    told.run(30_000.0)
    assert told.changes == changes


def test_a_withdrawn_model_is_in_no_assignment() -> None:
    told = Told("a", "b")
    told.deploy(m=100.0, k=50.0)
    told.controller.withdraw("k")
    told.run(2_000.0)
    for name in "ab":
        assignment = told.controller.assignment(name)
        assert assignment is not None and "k" not in assignment.models
    told.controller.withdraw("k")  # once is enough


@pytest.mark.parametrize("nodes", [2, 5])
def test_revisions_only_rise(nodes: int) -> None:
    names = "abcde"[:nodes]
    told = Told(*names)
    told.deploy(m=500.0, k=500.0)
    last = {name: told.controller.assignment(name) for name in names}
    for name in names[1:]:
        told.controller.left(name)
        told.run(300.0)
        told.controller.joined(name, described(name, began=2))
        told.run(300.0)
        for each in names:
            now, before = told.controller.assignment(each), last[each]
            if now is not None and before is not None:
                assert now.revision >= before.revision
        last = {each: told.controller.assignment(each) for each in names}


def test_accelerators_keep_what_they_are() -> None:
    told = Told("a")
    told.deploy(m=10.0)
    (part, *_) = told.controller.plan.partitions
    assert part.gpu in ("a/gpu0", "a/gpu1")
    assert isinstance(described("a").gpus[0], Gpu)


def assignments(told: Told, *nodes: str) -> dict[str, Assignment]:
    found = {name: told.controller.assignment(name) for name in nodes}
    return {name: one for name, one in found.items() if one is not None}


def test_the_next_controller_tells_nodes_what_they_have_in_its_own_term() -> None:
    first = Told("a", "b", "c")
    first.deploy(m=3000.0, k=500.0)
    before = assignments(first, "a", "b", "c")
    assert len(before) == 3
    following = Told("a", "b", "c", term=2, standing=before)
    following.deploy(m=3000.0, k=500.0)
    for name, now in assignments(following, "a", "b", "c").items():
        assert now.revision.term == 2 and now.models == before[name].models
        kept = [(one.id, one.gpu, one.share_pct) for one in before[name].plan.partitions]
        assert [(one.id, one.gpu, one.share_pct) for one in now.plan.partitions] == kept


def placed(*gpus: str) -> System:
    """Each model on the accelerator at its place in the order of names, the last for all others."""

    def place(there: list[str], demand: Sequence[Demand]) -> list[Partition]:
        held: dict[str, list[Slot]] = {}
        for number, one in enumerate(sorted(demand, key=lambda d: d.model)):
            slot = Slot(one.model, 8, one.rows_per_s)
            held.setdefault(gpus[min(number, len(gpus) - 1)], []).append(slot)
        return [Partition(gpu, gpu, 100, tuple(own)) for gpu, own in held.items()]

    return planned_by(place)


def test_what_a_former_controller_placed_stays_until_it_stands_elsewhere() -> None:
    first = Told("a", "b", system=placed("a/gpu0"), gpus=1, zone="rack")
    first.deploy(m=10.0, k=10.0)
    before = assignments(first, "a", "b")
    apart = placed("a/gpu0", "b/gpu0")
    following = Told("a", "b", term=2, system=apart, standing=before, gpus=1, zone="rack")
    following.deploy(m=10.0, k=10.0)
    now = {name: set(one.models) for name, one in assignments(following, "a", "b").items()}
    assert now["a"] == {"m", "k"} and len(now["b"]) == 1
    (moved,) = now["b"]
    answers = {moved: ModelOutlook(5.0, 5.0, 1.0, 50.0)}
    following.controller.heard("b", NodeState(1, 1, answers))
    following.run(300.0)
    now = {name: set(one.models) for name, one in assignments(following, "a", "b").items()}
    assert now == {"a": {"m", "k"} - {moved}, "b": {moved}}


def test_what_is_served_no_more_is_not_taken_over() -> None:
    first = Told("a", "b")
    first.deploy(m=10.0, k=10.0)
    following = Told("a", "b", term=2, standing=assignments(first, "a", "b"))
    following.deploy(m=10.0)
    for one in assignments(following, "a", "b").values():
        assert "k" not in one.models
