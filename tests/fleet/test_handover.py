"""What a node keeps of a model that goes elsewhere."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.plan import Partition, Plan, Slot
from interlace.fleet.fleet_gpus import models_of
from interlace.fleet.handover import NodePart, handed_over, keeping
from interlace.perf.memory import holds
from interlace.testing.worlds import FREE, line_profile

GPUS = {"gpu0": replace(FREE, id="gpu0", memory_bytes=10**9)}
PROFILES = {name: line_profile(name, 2.0, 1.0) for name in "mkl"}


def part(name: str, share_pct: int, *slots: Slot) -> Partition:
    return Partition(name, "gpu0", share_pct, slots)


def turn(model: str) -> Slot:
    return Slot(model, 4, 100.0)


BEFORE = Plan((part("p", 50, turn("m"), turn("k")), part("q", 50, turn("l"))))


def kept(after: Plan, *leaving: str) -> dict[str, list[str]]:
    plan = keeping(after, BEFORE, leaving, GPUS, PROFILES)
    assert keeping(after, plan, leaving, GPUS, PROFILES) == plan  # looked at again, it is the same
    return {one.id: [slot.model for slot in one.slots] for one in plan.partitions}


def test_a_model_stays_in_its_partition_while_that_stays() -> None:
    after = Plan((part("p", 50, turn("k")), part("q", 100, turn("l"))))
    assert kept(after, "m") == {"p": ["k", "m"], "q": ["l"]}


def test_a_model_whose_partition_goes_joins_the_widest() -> None:
    after = Plan((part("r", 25, turn("k")), part("s", 75, turn("l"))))
    assert kept(after, "m") == {"r": ["k"], "s": ["l", "m"]}


def test_a_partition_stays_where_nothing_else_is_planned() -> None:
    assert kept(Plan(), "m", "k") == {"p": ["k", "m"]}


def test_what_does_not_fit_beside_the_plan_leaves_at_once() -> None:
    after = Plan((part("p", 50, turn("k")),))
    heavy = {**PROFILES, "m": replace(PROFILES["m"], weights_bytes=10**9)}
    assert keeping(after, BEFORE, ["m"], GPUS, heavy) == after


def test_guests_are_not_kept() -> None:
    before = Plan((part("p", 50, turn("k"), replace(turn("m"), guest=True)),))
    after = Plan((part("p", 50, turn("k")),))
    assert keeping(after, before, ["m"], GPUS, PROFILES) == after


#: Of which an accelerator of 10^9 bytes holds two small ones, or a large one.
SIZES = {"m": 4, "k": 4, "l": 4, "x": 8, "y": 8, "z": 6}
SIZED = {
    name: replace(line_profile(name), weights_bytes=size * 10**8, activation_bytes=0)
    for name, size in SIZES.items()
}


class Nodes:
    """Nodes with an accelerator each that do what they are told; ``at`` are their models by name.

    Every step has to fit, and no model goes that is to stay, but for those that are named.
    """

    def __init__(self, at: dict[str, str], to: dict[str, str]) -> None:
        self.now = {node: self._plan(models) for node, models in at.items()}
        self.to = {node: self._plan(models) for node, models in to.items()}
        self.lost: dict[str, str] = {}
        self.steps: list[dict[str, str]] = []

    def _plan(self, models: str) -> Plan:
        return Plan((part("p", 100, *map(turn, models)),) if models else ())

    def served(self) -> set[str]:
        return {model for plan in self.now.values() for model in models_of(plan.partitions)}

    def wanted(self) -> set[str]:
        return {model for plan in self.to.values() for model in models_of(plan.partitions)}

    def step(self) -> bool:
        """The next one, until nothing changes any more."""
        moving = {
            model
            for node, plan in self.to.items()
            for model in models_of(plan.partitions) - models_of(self.now[node].partitions)
        }
        parts = {node: NodePart(self.now[node], self.to[node], GPUS, SIZED) for node in self.now}
        before = self.served()
        told, lost = handed_over(parts, moving)
        for plan in told.values():
            held = [(one.share_pct, [s.model for s in one.slots]) for one in plan.partitions]
            assert holds(GPUS["gpu0"], held, SIZED)
        changed = told != self.now
        self.now = told
        self.lost |= lost
        gone = (before - self.served()) & self.wanted()
        assert gone <= lost.keys(), "without a host, and nobody said so"
        self.steps.append({n: "".join(sorted(models_of(p.partitions))) for n, p in told.items()})
        return changed

    def run(self) -> None:
        for _ in range(40):
            if not self.step():
                break
        for node, plan in self.to.items():
            assert models_of(self.now[node].partitions) == models_of(plan.partitions)


def test_a_chain_is_moved_from_its_free_end() -> None:
    nodes = Nodes({"a": "x", "b": "y", "c": ""}, {"a": "", "b": "x", "c": "y"})
    nodes.run()
    assert nodes.lost == {}
    assert nodes.steps[0] == {"a": "x", "b": "y", "c": "y"}
    assert nodes.steps[1]["a"] == "x", "until it stands where the other has left"


def test_two_that_change_places_without_room_break_one_and_say_which() -> None:
    nodes = Nodes({"a": "x", "b": "y"}, {"a": "y", "b": "x"})
    nodes.run()
    assert nodes.lost == {"x": "node a has no memory for it beside what comes there"}


def test_two_that_change_places_beside_room_break_nothing() -> None:
    nodes = Nodes({"a": "m", "b": "k"}, {"a": "k", "b": "m"})
    nodes.run()
    assert nodes.lost == {}


def test_a_guest_makes_room_for_what_leaves_later() -> None:
    lent = replace(turn("m"), guest=True)
    parts = {
        "a": NodePart(Plan((part("p", 100, turn("y")),)), Plan((part("p", 100, turn("z"), lent),)),
                      GPUS, {**SIZED, "y": SIZED["k"]}),
        "b": NodePart(Plan(), Plan((part("p", 100, turn("y")),)), GPUS, SIZED),
    }  # fmt: skip
    told, lost = handed_over(parts, {"y", "z"})
    assert models_of(told["a"].partitions) == {"y", "z"} and lost == {}
    told, lost = handed_over({**parts, "a": replace(parts["a"], before=told["a"])}, set())
    assert models_of(told["a"].partitions) == {"z", "m"}


PLACES = st.dictionaries(
    st.sampled_from("mklxyz"), st.sets(st.sampled_from("abcd"), min_size=1, max_size=2)
)


def _placed(places: dict[str, set[str]]) -> dict[str, str]:
    """Models by node, as many as its memory holds."""
    at = dict.fromkeys("abcd", "")
    for model, nodes in sorted(places.items()):
        for node in sorted(nodes):
            if sum(SIZES[one] for one in at[node] + model) <= 10:
                at[node] += model
    return at


@settings(max_examples=300)
@given(PLACES, PLACES)
def test_no_step_takes_more_memory_than_there_is_and_all_ends_as_planned(
    before: dict[str, set[str]], after: dict[str, set[str]]
) -> None:
    Nodes(_placed(before), _placed(after)).run()
