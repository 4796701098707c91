"""How soon a model's next request would be answered, held against what becomes of it."""

from dataclasses import replace

import pytest

from interlace.core.plan import Partition, Plan, Slot
from interlace.core.request import Outcome
from tests.builders import World, line_profile, machine
from tests.engine.test_cold_starts import cold_world


@pytest.fixture
def world() -> World:
    world = World({"a": line_profile("a"), "b": line_profile("b", 5.0, 2.0)})
    world.deploy({"a": 50.0, "b": 100.0})
    world.run(1_000)
    return world


def outlook_ms(world: World, model: str) -> float:
    outlooks = world.engine.outlooks(world.clock.now_ms())
    (found,) = [one.wait_ms for key, one in outlooks.items() if key.startswith(model)]
    return found


@pytest.mark.parametrize("waiting", [0, 1, 4, 16])
def test_it_is_what_the_next_request_takes(world: World, waiting: int) -> None:
    for _ in range(waiting):
        world.send("a", 50.0)
    told_ms = outlook_ms(world, "a")
    request = world.send("a", 50.0)
    world.run(200)
    timing = world.reply_of(request).timing
    took_ms = timing.queue_ms + timing.input_ms + timing.infer_ms + timing.output_ms
    assert told_ms == pytest.approx(took_ms, rel=0.35)


def test_alone_it_is_one_execution(world: World) -> None:
    outlooks = world.engine.outlooks(world.clock.now_ms())
    for one in outlooks.values():
        assert one.wait_ms == one.alone_ms and one.cold_ms == 0.0 and one.waiting_rows == 0
    assert len(outlooks) == 2


def test_more_that_waits_makes_it_longer(world: World) -> None:
    before_ms = outlook_ms(world, "b")
    for _ in range(8):
        world.send("b", 100.0)
    assert outlook_ms(world, "b") > before_ms


def test_a_cold_model_counts_its_load_though_nobody_has_asked_for_it() -> None:
    world = cold_world(400)
    world.run(1_000)
    outlooks = world.engine.outlooks(world.clock.now_ms())
    colds = sorted(one.cold_ms for one in outlooks.values())
    assert colds[-1] > 0.0
    for one in outlooks.values():
        assert one.wait_ms >= one.cold_ms + one.alone_ms - 1e-9 or one.cold_ms == 0.0


def guest_world() -> World:
    """`b` has nothing of its own here: it is lent what `a` leaves, in batches of 4."""
    slots = (Slot("a", 4, 50.0), Slot("b", 4, 0.0, guest=True))
    world = World({"a": line_profile("a"), "b": line_profile("b")}, machine())
    part = Partition("p", world.fleet.gpus[0].id, 100, slots)
    world.system = replace(world.system, planner=lambda *_: Plan((part,)))
    world.deploy({"a": 50.0, "b": 50.0})
    world.run(1_000)
    return world


@pytest.mark.parametrize("waiting", [0, 1, 4, 16])
def test_of_a_guest_it_is_what_its_next_request_takes_after_all_others(waiting: int) -> None:
    world = guest_world()
    assert {one.lent for one in world.engine.outlooks(world.clock.now_ms()).values()} == {
        True, False
    }  # fmt: skip
    for _ in range(waiting):
        world.send("a", 500.0)
    told_ms = outlook_ms(world, "b")
    request = world.send("b", 500.0)
    world.run(500)
    reply = world.reply_of(request)
    assert reply.outcome is Outcome.OK
    took_ms = reply.timing.queue_ms + reply.timing.infer_ms
    assert took_ms <= 1.35 * told_ms


def test_a_guest_is_refused_what_is_left_too_late() -> None:
    world = guest_world()
    for _ in range(200):
        world.send("a", 500.0)
    world.run(10)
    request = world.send("b", 20.0)
    world.run(500)
    reply = world.reply_of(request)
    assert reply.outcome is Outcome.REFUSED
    assert reply.error is not None and "after the deadline of 20.0 ms" in str(reply.error)
    assert "inf" not in str(reply.error)
