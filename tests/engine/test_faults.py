"""Deaths, bad batches and changes of plan lose no request."""

import random
from dataclasses import replace as replace_field

import pytest
from msgspec.structs import replace

from interlace.core.errors import Reason, ServeError
from interlace.core.hardware import Trait
from interlace.core.messages import (
    CancelRun,
    Failure,
    Load,
    ModelWithdrawn,
    PlanChanged,
    Run,
    Work,
    WorkFinished,
)
from interlace.core.plan import Partition, Plan, Slot
from interlace.core.request import Callbacks, CallContext, Outcome, Request
from interlace.device.base import Done
from tests.builders import OVERLAP, World, line_profile, machine


def _world(traits: frozenset[Trait] = OVERLAP) -> World:
    profiles = {name: line_profile(name, 2.0 + i, 1.0) for i, name in enumerate("abc")}
    world = World(profiles, machine(traits=traits))
    world.deploy(dict.fromkeys("abc", 60.0))
    world.run(1_000)
    assert {t.model for t in world.statuses if t.status == "ready"} == set("abc")
    return world


def _partition_running(world: World) -> str:
    for _ in range(1_000):
        for live in world.state.partitions.values():
            if live.batch:
                return live.id
        world.run(0.5)
    raise AssertionError("nothing ever ran")


def test_a_killed_worker_costs_nothing_when_there_is_time_to_retry() -> None:
    world = _world()
    request = world.send("a", 1_000.0)
    world.devices["g0"].kill(_partition_running(world))
    world.run(1_000)
    assert world.reply_of(request).outcome is Outcome.OK
    assert world.state.partitions_lost == 1
    assert world.send("a", 60.0) and not world.run(100)
    assert world.replies[-1][1].outcome is Outcome.OK


def _stream(world: World, slo_ms: float = 1_000.0) -> Request:
    """A request that streams, whose model hears that its client went away."""
    now_ms = world.clock.now_ms()
    request = Request(world.runtime.next_id(), "a", now_ms, now_ms + slo_ms, streams=True)
    request = replace(request, context=CallContext())
    world.runtime.submit(request, Callbacks(lambda reply: world.replies.append((0.0, reply))))
    return request


def test_a_stream_is_not_run_again_and_not_given_up_while_it_runs() -> None:
    world = _world()
    request = _stream(world)
    world.devices["g0"].kill(_partition_running(world))
    world.run(1_000)
    reply = world.reply_of(request)
    assert reply.outcome is Outcome.FAILED and reply.error is not None
    request = _stream(world, slo_ms=60.0)
    _partition_running(world)
    world.devices["g0"].stall(500.0)
    world.run(400)
    assert len(world.replies) == 1 and not world.state.given_up
    world.run(400)
    assert world.reply_of(request).outcome is Outcome.LATE


def test_the_model_of_a_running_request_hears_that_its_client_went_away() -> None:
    world = _world()
    request = _stream(world)
    partition = _partition_running(world)
    world.runtime.cancel(request)
    commands = [one for _, _, made in world.log for one in made if isinstance(one, CancelRun)]
    assert commands == [CancelRun("g0", partition, request.id)]
    world.run(100)
    assert world.reply_of(request).outcome is Outcome.CANCELLED


@pytest.mark.sources
def test_a_request_that_its_model_refuses_fails_alone_and_is_not_tried_again() -> None:
    world = _world()
    device = world.devices["g0"]
    run, batches = device.do, []
    refusal = ServeError(Reason.UNKNOWN_MODEL, "no such word")

    def do(work: Work, done: Done) -> None:
        if not isinstance(work, Run):
            return run(work, done)
        batches.append(work.batch)

        def ended(finished: WorkFinished) -> None:
            errors = [None if one.rows == 1 else refusal for one in work.batch.requests]
            done(replace(finished, errors=tuple(errors)))

        return run(work, ended)

    device.do = do  # type: ignore[method-assign]
    sent = [world.send("a", 200.0, rows) for rows in (1, 1, 2, 1)]
    world.run(500)
    replies = [world.reply_of(one) for one in sent]
    assert [one.outcome for one in replies] == [Outcome.OK, Outcome.OK, Outcome.FAILED, Outcome.OK]
    assert replies[2].error == refusal and replies[2].batch is None and not replies[2].deaths
    assert sum(len(batch.requests) for batch in batches) == 4 and len(batches) < 4


def test_a_second_death_answers_with_an_error_and_says_how_many_workers_died() -> None:
    world = _world()
    request = world.send("a", 5_000.0)
    for _ in range(2):
        world.devices["g0"].kill(_partition_running(world))
    world.run(500)
    reply = world.reply_of(request)
    assert reply.outcome is Outcome.FAILED and reply.deaths == 2
    assert reply.error is not None and reply.error.reason is Reason.BACKEND
    late = world.send("a", 70.0)
    world.devices["g0"].stall(5_000.0)
    world.run(3_000.0)
    assert (world.reply_of(late).outcome, world.reply_of(late).deaths) == (Outcome.EXPIRED, 1)


def test_three_deaths_set_a_model_aside_and_the_rest_serve_on() -> None:
    world = _world()
    for _ in range(3):
        world.send("a", 200.0)
        world.devices["g0"].kill(_partition_running(world), "signal 11")
        world.run(500)
    failed = [t for t in world.statuses if t.status == "failed"]
    assert [t.model for t in failed] == ["a"] and "signal 11" in failed[0].detail
    reply = world.reply_of(world.send("a", 60.0))
    assert reply.error is not None and reply.error.reason is Reason.QUARANTINED
    other = world.send("b", 60.0)
    world.run(100)
    assert world.reply_of(other).outcome is Outcome.OK


def test_nothing_is_kept_of_what_was_withdrawn() -> None:
    world = _world()
    for _ in range(5):
        world.send("b", 60.0)
        world.run(100)
    world.runtime.deliver(ModelWithdrawn("b"))
    world.run(500)
    state = world.state
    assert "b" not in state.models and all(model != "b" for _, model in state.starts_ms)
    assert all("b" not in tallies for tallies in state.tallies.values())
    assert all("b" not in live.starts_ms for live in state.partitions.values())
    assert state.starts_ms.keys() == {
        (gpu, model) for gpu, model in state.starts_ms if model in "ac"
    }


def _crash(world: World, times: int) -> None:
    for _ in range(times):
        world.send("a", 200.0)
        world.devices["g0"].kill(_partition_running(world), "signal 11")
        world.run(500)


def test_a_quarantined_model_is_tried_again_after_growing_pauses() -> None:
    world = _world()
    pauses_s = []
    for _ in range(3):
        _crash(world, 3)
        began_ms = world.clock.now_ms()
        refusal = world.reply_of(world.send("a", 60.0)).error
        assert refusal is not None and refusal.reason is Reason.QUARANTINED
        assert refusal.retry_after_ms is not None
        while world.state.models["a"].quarantine_reason is not None:
            world.run(1_000)
        pauses_s.append(round((world.clock.now_ms() - began_ms) / 10_000.0) * 10)
        world.run(1_000)
        told = [t.status for t in world.statuses if t.model == "a"]
        assert told[-2:] == ["failed", "ready"]
        request = world.send("a", 60.0)
        world.run(100)
        assert world.reply_of(request).outcome is Outcome.OK
    assert pauses_s == [10, 20, 40]
    world.run(650_000)
    _crash(world, 3)
    assert "again after 10 s" in (world.state.models["a"].quarantine_reason or "")


def test_pauses_are_bounded_and_those_that_leave_stay_away() -> None:
    world = _world()
    for _ in range(8):
        _crash(world, 3)
        while world.state.models["a"].quarantine_reason is not None:
            world.run(1_000)
        world.run(1_000)
    assert world.state.models["a"].quarantine_ms == 600_000.0
    _crash(world, 3)
    world.runtime.deliver(ModelWithdrawn("a"))
    world.run(700_000)
    assert "a" not in world.state.models


def test_a_death_that_came_from_outside_is_not_blamed() -> None:
    world = _world()
    for _ in range(5):
        request = world.send("a", 2_000.0)
        partition = _partition_running(world)
        world.devices["g0"].fail_next(Run, Failure("killed from outside", True, True))
        world.run(500)
        assert world.reply_of(request).outcome is Outcome.OK, partition
    assert world.state.partitions_lost == 5
    assert world.state.models["a"].quarantine_reason is None


def test_values_at_fault_are_refused_and_cost_neighbours_nothing() -> None:
    world = _world()
    bad = world.send("a", 2_000.0)
    world.devices["g0"].fail_next(Run, Failure("input 'x': no UTF-8", bad_input=True))
    world.run(500)
    reply = world.reply_of(bad)
    assert reply.outcome is Outcome.REFUSED and reply.error is not None
    assert reply.error.reason is Reason.BAD_INPUT and reply.error.detail == "input 'x': no UTF-8"
    world.send("a", 60.0)  # runs, so that the next two share a batch
    shared = [world.send("a", 2_000.0) for _ in range(2)]
    for detail in ("", "input 'x': no UTF-8"):  # it alone is at fault, or another of its batch
        world.devices["g0"].fail_next(Run, Failure(detail, bad_input=True))
    world.run(1_000)
    outcomes = [world.reply_of(one).outcome for one in shared]
    assert Outcome.OK in outcomes and Outcome.FAILED not in outcomes
    assert world.state.models["a"].quarantine_reason is None


@pytest.mark.parametrize("replanned", [False, True])
@pytest.mark.parametrize("traits", [OVERLAP, frozenset()])
def test_withdrawing_under_load_answers_what_was_accepted_and_unloads(
    traits: frozenset[Trait], replanned: bool
) -> None:
    world = _world(traits)
    sent = [world.send("b", 60.0) for _ in range(10)]
    world.runtime.deliver(ModelWithdrawn("b"))
    if replanned:
        world.runtime.deliver(PlanChanged())
    world.run(500)
    assert all(world.reply_of(r).outcome is Outcome.OK for r in sent)
    assert [t.model for t in world.statuses if t.status == "gone"] == ["b"]
    assert all("b" not in live.model_states for live in world.state.partitions.values())
    reply = world.reply_of(world.send("b", 60.0))
    assert reply.error is not None and reply.error.reason is Reason.UNKNOWN_MODEL


def test_with_overlap_a_served_model_is_never_without_a_host() -> None:
    world = _world()
    hostless: list[float] = []

    def watch(now_ms: float, event: object, commands: object) -> None:
        models = world.state.models.items()
        hostless.extend(now_ms for name, t in models if name in "abc" and not t.hosts)

    world.runtime._observers.append(watch)
    chooser = random.Random(7)
    for _ in range(400):
        world.send(chooser.choice("ccca"), 60.0)
        world.run(chooser.expovariate(1 / 20.0))
    world.deploy({})
    world.run(15_000)
    assert not hostless
    outcomes = {r.outcome for _, r in world.replies}
    assert outcomes <= {Outcome.OK, Outcome.REFUSED}


def test_a_model_that_fits_nowhere_is_told_why() -> None:
    world = World({"slow": line_profile("slow", 500.0, 10.0)})
    world.deploy({"slow": 50.0})
    world.run(500)
    (tell,) = world.statuses
    assert tell.status == "failed" and "SLO" in tell.detail


@pytest.mark.sources
def test_a_model_that_never_loads_is_told_to_its_owner_though_plans_follow_each_other() -> None:
    """As when its code loads another model, for which there is a new plan each time."""
    world = World({"b": line_profile("b")}, machine())
    (gpu,) = world.fleet.gpus
    parts = tuple(Partition(n, gpu.id, 50, (Slot("b", 4, 10.0),)) for n in ("p0", "p1"))
    world.system = replace_field(world.system, planner=lambda *_: Plan(parts))
    device, loads = world.devices[gpu.id], list[str]()
    carry_out = device.do

    def do(work: Work, done: Done) -> None:
        if not isinstance(work, Load):
            return carry_out(work, done)
        loads.append(work.partition)

        def fail() -> None:
            done(WorkFinished(work, failure=Failure("it does not work")))
            world.runtime.deliver(PlanChanged())

        # So that one goes on when the other fails.
        after_ms = 10.0 if work.partition == loads[0] else 17.0
        world.clock.call_at(world.clock.now_ms() + after_ms, fail)

    device.do = do  # type: ignore[method-assign]
    world.deploy({"b": 100.0})
    world.run(5_000.0)
    assert [(one.model, one.status) for one in world.statuses] == [("b", "failed")]
    assert "it does not work" in world.statuses[0].detail
    assert 3 <= len(loads) <= 8
