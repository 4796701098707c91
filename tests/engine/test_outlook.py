"""What the engine predicts of its models, and that asking changes nothing."""

from __future__ import annotations

import random

import pytest

from interlace.core.messages import ModelWithdrawn
from interlace.core.request import Outcome, Request
from tests.builders import World, line_profile
from tests.engine.test_cold_starts import cold_world


def two_models() -> World:
    world = World({"a": line_profile("a"), "b": line_profile("b", 5.0, 2.0)})
    world.deploy({"a": 50.0, "b": 200.0}, 20.0)
    world.run(1_000)
    return world


def ended_ms(world: World, request: Request) -> float:
    (at_ms,) = [at_ms for at_ms, reply in world.replies if reply.request.id == request.id]
    return at_ms


def test_an_idle_model_is_waited_for_by_nobody() -> None:
    world = two_models()
    found = world.engine.outlook(world.clock.now_ms()).models
    assert set(found) == {"a", "b"}
    assert found["a"].wait_ms == 0.0 and found["a"].waiting_rows == 0
    request = world.send("a", 50.0)
    world.run(100)
    took_ms = ended_ms(world, request) - request.arrived_ms
    assert took_ms == pytest.approx(found["a"].run_ms, abs=0.5)
    assert found["a"].slo_ms == 50.0 and found["a"].cold_ms == 0.0
    assert found["a"].rows_per_s == 20.0 and found["a"].planned_rows_per_s > 0


def test_each_queued_row_adds_to_the_wait_of_the_next() -> None:
    world = two_models()
    waits_ms = []
    for _ in range(30):
        world.send("b", 200.0)
        outlook = world.engine.outlook(world.clock.now_ms()).models["b"]
        waits_ms.append(outlook.wait_ms)
    assert waits_ms == sorted(waits_ms) and outlook.waiting_rows > 20
    added_ms = (waits_ms[-1] - waits_ms[10]) / (len(waits_ms) - 11)
    assert added_ms == pytest.approx(outlook.row_ms, rel=0.2)


def test_the_last_request_ends_by_the_time_that_was_predicted() -> None:
    for count in (1, 5, 20, 40):
        world = two_models()
        for _ in range(count):
            world.send("b", 200.0)
        now_ms = world.clock.now_ms()
        found = world.engine.outlook(now_ms).models["b"]
        last = world.send("b", 200.0)
        world.run(500)
        if world.reply_of(last).outcome is Outcome.OK:
            assert ended_ms(world, last) <= now_ms + found.wait_ms + found.run_ms + 10.0


def test_a_model_that_is_gone_has_no_outlook() -> None:
    world = two_models()
    world.runtime.deliver(ModelWithdrawn("a"))
    world.run(1_000)
    assert set(world.engine.outlook(world.clock.now_ms()).models) == {"b"}


def test_weights_that_are_not_there_are_waited_for() -> None:
    world = cold_world(budget=500, names="ab")
    found = world.engine.outlook(world.clock.now_ms()).models
    cold = [one for one in found.values() if one.cold_ms > 0]
    assert cold and all(one.wait_ms >= one.cold_ms for one in cold)


def test_asking_changes_no_command() -> None:
    logs = []
    for asked in (False, True):
        world, pick = two_models(), random.Random(7)
        for _ in range(300):
            world.send(pick.choice("ab"), pick.choice([20.0, 50.0, 200.0]), pick.randint(1, 3))
            world.run(pick.uniform(0, 6))
            if asked:
                world.engine.outlook(world.clock.now_ms())
        world.run(1_000)
        logs.append([(now_ms, str(event), str(made)) for now_ms, event, made in world.log])
    assert logs[0] == logs[1]
