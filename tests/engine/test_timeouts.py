"""Batches that hang: callers are told in time, once, and the worker is replaced by the profile."""

from dataclasses import replace

import pytest

from interlace.core.errors import Reason
from interlace.core.hardware import Trait
from interlace.core.messages import (
    Deployment,
    ModelsDeployed,
    ModelWithdrawn,
    ReportTimeout,
    Run,
    SendReply,
)
from interlace.core.plan import Demand
from interlace.core.request import Callbacks, Outcome, Request
from interlace.engine.engine import Engine
from tests.builders import OVERLAP, World, line_profile, machine

#: One row takes at most 4 ms.
PROFILES = {name: line_profile(name, 2.0, 1.0) for name in "ab"}
SLO_MS = 60.0


def _world(traits: frozenset[Trait] = OVERLAP) -> World:
    world = World(PROFILES, machine(traits=traits))
    world.deploy(dict.fromkeys("ab", SLO_MS))
    world.run(1_000)
    return world


def _hang(world: World, for_ms: float) -> Request:
    """A request whose batch begins, and then nothing moves for so long."""
    request = world.send("a", SLO_MS)
    for _ in range(1_000):
        if any(live.batch for live in world.state.partitions.values()):
            world.devices["g0"].stall(for_ms)
            return request
        world.run(0.5)
    raise AssertionError("nothing ever ran")


def _told_ms(world: World, request: Request) -> list[float]:
    """When its caller was told that it is too late."""
    return [
        now_ms
        for now_ms, _, commands in world.log
        for one in commands
        if isinstance(one, ReportTimeout) and one.request.id == request.id
    ]


def test_a_caller_is_told_soon_after_the_deadline_and_the_late_result_is_dropped() -> None:
    world = _world()
    request = _hang(world, 500.0)
    world.run(200.0)
    (told_ms,) = _told_ms(world, request)
    assert request.deadline_ms < told_ms <= request.deadline_ms + 60.0
    assert world.replies == [], "its inputs are still read"
    world.run(800.0)
    reply = world.reply_of(request)
    assert reply.outcome is Outcome.EXPIRED and reply.batch is None and not reply.outputs
    assert reply.error is not None and reply.error.reason is Reason.DEADLINE
    assert len(_told_ms(world, request)) == 1
    assert world.state.partitions_lost == 0, "half a second is no reason to kill a worker"
    assert not world.state.given_up
    after = world.send("a", SLO_MS)
    world.run(100.0)
    assert world.reply_of(after).outcome is Outcome.OK


def test_what_is_late_as_executions_are_late_is_answered() -> None:
    world = _world()
    request = _hang(world, SLO_MS + 20.0)
    world.run(200.0)
    assert world.reply_of(request).outcome is Outcome.LATE
    assert not _told_ms(world, request)


def test_who_goes_away_after_being_told_changes_nothing() -> None:
    world = _world()
    request = _hang(world, 500.0)
    world.run(200.0)
    world.runtime.cancel(request)
    world.run(800.0)
    assert world.reply_of(request).outcome is Outcome.EXPIRED
    assert not world.state.cancelled and not world.state.given_up


def test_a_worker_that_hangs_is_replaced_after_a_second_not_thirty() -> None:
    world = _world()
    request = _hang(world, 600_000.0)
    began_ms = world.clock.now_ms()
    world.run(900.0)
    assert world.state.partitions_lost == 0
    world.run(200.0)
    assert world.state.partitions_lost == 1
    assert world.reply_of(request).outcome is Outcome.EXPIRED
    assert world.clock.now_ms() - began_ms < 1_200.0


def _limit_ms(world: World, model: str) -> float:
    return next(
        one.limit_ms
        for _, _, commands in reversed(world.log)
        for one in commands
        if isinstance(one, Run) and one.batch.model == model
    )


def test_the_limit_is_a_second_or_twenty_times_what_is_believed() -> None:
    profiles = {"quick": line_profile("quick", 2.0, 1.0), "slow": line_profile("slow", 400.0, 1.0)}
    truth = profiles | {"slow": line_profile("slow", 800.0, 2.0)}
    world = World(profiles, truth=truth)
    world.deploy({"quick": SLO_MS, "slow": 4_000.0})
    world.run(1_000.0)
    for _ in range(40):
        world.send("slow", 4_000.0)
        world.send("quick", SLO_MS)
        world.run(1_000.0)
    assert _limit_ms(world, "quick") == 1_000.0
    run_ms = world.state.models["slow"].estimator.latency_ms(1, 100, "()")
    assert run_ms > 300.0, "twice as slow was learnt"
    assert _limit_ms(world, "slow") == pytest.approx(20.0 * run_ms, rel=0.1)


@pytest.mark.parametrize("streams", [False, True])
def test_a_worker_is_waited_for_until_its_caller_expects_no_answer(streams: bool) -> None:
    world = World(PROFILES, machine())
    world.deploy(dict.fromkeys("ab", SLO_MS))
    world.run(1_000.0)
    now_ms = world.clock.now_ms()
    request = Request(world.runtime.next_id(), "a", now_ms, now_ms + 60_000.0, streams=streams)
    world.runtime.submit(request, Callbacks(lambda reply: None))
    world.run(100.0)
    assert _limit_ms(world, "a") == pytest.approx(60_000.0, abs=10.0)


def test_a_caller_with_little_time_does_not_end_a_worker_that_may_take_longer() -> None:
    world = World(PROFILES, machine())
    asked = Deployment(Demand("a", 0.0, SLO_MS), world.profiles["a"], limit_ms=60_000.0)
    world.runtime.deliver(ModelsDeployed((asked,)))
    world.run(1_000.0)
    world.send("a", 300.0)
    world.run(100.0)
    assert _limit_ms(world, "a") == 60_000.0


def test_a_process_that_takes_long_to_start_is_waited_for_as_long_as_that_takes() -> None:
    world = _world(OVERLAP | {Trait.SLOW_START})
    _hang(world, 5_000.0)
    loads = sum(len(live.model_states) for live in world.state.partitions.values())
    assert _limit_ms(world, "a") == 10_000.0 + 5.0 * loads
    world.run(6_000.0)
    assert world.state.partitions_lost == 0


def test_a_worker_is_waited_for_as_long_as_its_models_took_to_load() -> None:
    believed = {name: replace(profile, load_ms=1.0) for name, profile in PROFILES.items()}
    truth = {name: replace(profile, load_ms=2_000.0) for name, profile in PROFILES.items()}
    world = World(believed, machine(), truth=truth)
    world.deploy(dict.fromkeys("ab", SLO_MS))
    world.run(10_000.0)
    request = _hang(world, 600_000.0)
    (host,) = (live for live in world.state.partitions.values() if live.batch)
    assert len(host.model_states) == 2, "one model takes 2 s"
    limit_ms = 2_000.0 * len(host.model_states)
    assert _limit_ms(world, "a") == pytest.approx(limit_ms)
    world.run(limit_ms - 100.0)
    assert world.state.partitions_lost == 0
    world.run(200.0)
    assert world.state.partitions_lost == 1
    assert world.reply_of(request).outcome is Outcome.EXPIRED


def test_what_was_unloaded_is_not_waited_for() -> None:
    world = World({name: replace(PROFILES[name], load_ms=2_000.0) for name in "ab"}, machine())
    world.deploy(dict.fromkeys("ab", SLO_MS))
    world.run(10_000.0)
    world.runtime.deliver(ModelWithdrawn("b"))
    world.run(1_000.0)
    world.send("a", SLO_MS)
    world.run(100.0)
    assert _limit_ms(world, "a") == pytest.approx(2_000.0)


def test_a_hang_plays_again_as_it_was() -> None:
    world = _world()
    _hang(world, 3_000.0)
    world.run(5_000.0)
    fresh = Engine(world.fleet, world.system)
    seen: list[type] = []
    for now_ms, event, commands in world.log:
        assert fresh.handle(event, now_ms) == commands
        seen += [type(one) for one in commands]
    assert ReportTimeout in seen and SendReply in seen


def test_a_batch_that_hangs_gives_up_each_request_by_its_own_deadline() -> None:
    world = World({"a": replace(PROFILES["a"], load_ms=1.0)})
    world.deploy({"a": 500.0})
    world.run(1_000.0)
    world.send("a", 500.0)
    world.send("a", 500.0)
    first = [world.send("a", slo_ms) for slo_ms in (300.0, 500.0, 800.0)]
    for _ in range(200):
        world.run(0.5)
        running = [live.batch for live in world.state.partitions.values() if live.batch]
        if any(first[0] in one.run.batch.requests for one in running):
            break
    world.devices["g0"].stall(700.0)
    world.run(2_000.0)
    ends = [world.reply_of(one).outcome for one in first]
    assert ends[0] is Outcome.EXPIRED and ends[2] in (Outcome.OK, Outcome.LATE)
