"""What a node keeps of a model that goes elsewhere."""

from __future__ import annotations

from dataclasses import replace

from interlace.core.plan import Partition, Plan, Slot
from interlace.fleet.handover import keeping
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
