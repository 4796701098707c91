"""Requests from arrival to answer, in virtual time."""

import pytest

from interlace.core.errors import Reason
from interlace.core.messages import RefusedUpstream
from interlace.core.request import Outcome
from interlace.engine.corrections import AdmissionMargin
from tests.builders import World, line_profile


@pytest.fixture
def world() -> World:
    world = World({"a": line_profile("a"), "b": line_profile("b", 5.0, 2.0)})
    world.deploy({"a": 50.0, "b": 100.0})
    world.run(1_000)
    assert {(t.model, t.status) for t in world.statuses} == {("a", "ready"), ("b", "ready")}
    return world


def test_a_lone_request_is_answered_in_one_execution(world: World) -> None:
    request = world.send("a", 50.0)
    world.run(100)
    reply = world.reply_of(request)
    assert reply.outcome is Outcome.OK
    assert reply.timing.queue_ms == 0.0
    assert reply.timing.batch_rows == 1


def test_requests_behind_a_running_batch_form_the_next_one(world: World) -> None:
    sent = [world.send("a", 50.0) for _ in range(9)]
    world.run(100)
    sizes = {world.reply_of(r).timing.batch_rows for r in sent}
    assert all(world.reply_of(r).outcome is Outcome.OK for r in sent)
    assert max(sizes) > 1


def test_what_cannot_make_it_is_refused_on_arrival_with_lateness_and_retry(world: World) -> None:
    sent = [world.send("a", 50.0) for _ in range(400)]
    refused = [r for r in sent if any(x.request is r for _, x in world.replies)]
    assert refused, "the flood must be refused before any time passes"
    error = world.reply_of(refused[-1]).error
    assert error is not None and error.reason is Reason.OVERLOADED
    assert error.late_ms is not None and error.retry_after_ms is not None
    assert error.retry_after_ms > 0
    world.run(500)
    accepted = [world.reply_of(r) for r in sent if r not in refused]
    assert accepted and all(reply.outcome is Outcome.OK for reply in accepted)


def test_an_impossible_slo_is_refused_without_a_retry_time(world: World) -> None:
    request = world.send("b", 1.0)
    reply = world.reply_of(request)
    assert reply.outcome is Outcome.REFUSED
    assert reply.error is not None and reply.error.reason is Reason.DEADLINE
    assert reply.error.retry_after_ms is None


def test_unknown_deployments_are_refused(world: World) -> None:
    reply = world.reply_of(world.send("nobody", 50.0))
    assert reply.error is not None and reply.error.reason is Reason.UNKNOWN_MODEL


def test_different_shapes_never_share_a_batch(world: World) -> None:
    for _ in range(3):
        world.send("a", 50.0)
    wide = [world.send("a", 50.0, shape="wide") for _ in range(4)]
    world.run(100)
    assert all(world.reply_of(r).timing.batch_rows <= 4 for r in wide)
    for _, event, _ in world.log:
        batch = getattr(getattr(event, "work", None), "batch", None)
        if batch is not None:
            assert len({r.shape for r in batch.requests}) == 1


def test_a_cancelled_request_in_the_queue_is_answered_at_once(world: World) -> None:
    for _ in range(8):
        world.send("a", 50.0)
    victim = world.send("a", 50.0)
    world.runtime.cancel(victim)
    assert world.reply_of(victim).outcome is Outcome.CANCELLED
    world.run(100)
    assert len([r for _, r in world.replies if r.request is victim]) == 1


def test_a_cancelled_request_that_runs_is_answered_when_its_batch_ends(world: World) -> None:
    victim = world.send("a", 50.0)
    world.runtime.cancel(victim)
    assert not world.replies
    world.run(100)
    assert world.reply_of(victim).outcome is Outcome.CANCELLED


def test_a_slower_truth_than_believed_is_learned() -> None:
    estimator = line_profile("a", 2.0, 1.0)
    world = World({"a": estimator}, truth={"a": line_profile("a", 6.0, 3.0)})
    world.deploy({"a": 60.0})
    world.run(1_000)
    world.send_at([1_000 + 2.0 * i for i in range(3_000)], "a", 60.0)
    world.run(8_000)
    last = [r for t, r in world.replies if t > 4_000 and r.outcome is not Outcome.REFUSED]
    late = [r for r in last if r.outcome is not Outcome.OK]
    assert last and len(late) <= 0.02 * len(last)


def test_what_is_left_in_the_queue_at_its_deadline_is_dropped() -> None:
    world = World({"a": line_profile("a")}, truth={"a": line_profile("a", 500.0, 1.0)})
    world.deploy({"a": 50.0})
    world.run(1_000)
    sent = [world.send("a", 50.0) for _ in range(4)]
    world.run(200)
    expired = [r for r in sent if any(x.request is r for _, x in world.replies)]
    assert expired
    for request in expired:
        assert world.reply_of(request).outcome is Outcome.EXPIRED
    margin_ms = world.state.models["a"].admission_margin_ms
    assert margin_ms > AdmissionMargin(50.0).margin_ms, "the margin hears of drops"
    world.run(2_000)
    assert len(world.replies) == len(sent)


def test_requests_turned_away_count_for_the_rate_but_not_for_the_queue(world: World) -> None:
    world.run(1_000)
    answered = len(world.replies)
    for _ in range(300):
        world.runtime.count_refused("a", 2)
    world.run(2_000)
    turned = [event for _, event, _ in world.log if isinstance(event, RefusedUpstream)]
    assert turned == [RefusedUpstream("a", 300, 600)]
    assert len(world.replies) == answered
    assert world.engine._rates.rows_per_s("a") > 0
    assert world.state.models["a"].queue.rows == 0


def test_only_arrivals_leave_a_refusal_as_it_stands(world: World) -> None:
    before = world.runtime.changes
    world.send("a", 50.0)
    assert world.runtime.changes == before
    world.run(50.0)
    assert world.runtime.changes > before
