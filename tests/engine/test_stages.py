"""Stages that requests of apps still have before them: counted on arrival, forgotten at the end."""

from msgspec.structs import replace

from interlace.core.messages import AppEnded
from interlace.core.request import Callbacks, LaterStage, Outcome, Request, StageOf
from tests.builders import World, line_profile


def _world() -> World:
    profiles = {"a": line_profile("a"), "b": line_profile("b", row_ms=30.0, max_batch=1)}
    world = World(profiles)
    world.deploy({"a": 200.0, "b": 200.0})
    world.run(2_000.0)
    return world


def _send(world: World, begun: bool = False) -> Request:
    """The first stage of an app whose second one, on b, is due in 200 ms."""
    now_ms, number = world.clock.now_ms(), world.runtime.next_id()
    later = () if begun else (LaterStage("b", 1, now_ms + 200.0),)
    part = StageOf("s", "app", number, now_ms + 200.0, later, begun)
    model, due_ms = ("b", 20.0) if begun else ("a", 150.0)
    request = Request(number, model, now_ms, now_ms + due_ms, part=part)
    world.runtime.submit(request, Callbacks(world._answered))
    return request


def test_a_first_stage_is_refused_where_a_later_one_would_be_late() -> None:
    world = _world()
    sent = [_send(world) for _ in range(20)]
    world.run(100.0)
    replies = [world.reply_of(one) for one in sent]
    accepted = [one for one in replies if one.outcome is Outcome.OK]
    assert 3 <= len(accepted) <= 12, "b takes 32 ms or 19 ms a row, and has 200 ms"
    refused = replies[len(accepted) :]
    assert {one.outcome for one in refused} == {Outcome.REFUSED}
    assert refused[0].error and "model 'b' would answer " in refused[0].error.detail
    _send(world)
    assert world.replies[-1][1].outcome is Outcome.REFUSED, "b still waits for those"
    for one in accepted:
        world.runtime.deliver(AppEnded(one.request.id))
    assert not world.state.coming
    again = _send(world)
    world.run(50.0)
    assert world.reply_of(again).outcome is Outcome.OK


def test_a_later_stage_is_not_refused_but_expires() -> None:
    world = _world()
    sent = [_send(world, begun=True) for _ in range(3)]
    world.run(100.0)
    assert {world.reply_of(one).outcome for one in sent} <= {Outcome.OK, Outcome.EXPIRED}


def test_a_stage_that_is_not_served_any_more_is_not_awaited() -> None:
    world = _world()
    first = _send(world).part
    assert first and world.state.coming
    world.state.models["b"].quarantine_reason = "it ended its worker three times"
    part = replace(first, later=(), begun=True)
    second = Request(world.runtime.next_id(), "b", 0.0, 9_000.0, part=part)
    world.runtime.submit(second, Callbacks(world._answered))
    assert world.reply_of(second).outcome is Outcome.REFUSED and not world.state.coming
