"""Batches given to a partition before the one before them ends: when, to whom, and failures."""

from dataclasses import replace
from itertools import pairwise

import pytest

from interlace.core.hardware import Fleet, Trait
from interlace.core.messages import ModelWithdrawn, Run, SendReply, WorkFinished
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.request import Outcome, Request
from interlace.device.simulated.device import device_factory
from interlace.device.simulated.physics import HostCost, Physics
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import merge_arrivals, poisson
from interlace.sim.run import FixedPlan, simulate
from interlace.sim.scenario import Simulation
from tests.builders import OVERLAP, World, distinct_rows, line_profile, machine

AHEAD_MS = 1.0
#: What the host takes before and after each batch.
HOST = Physics(host=HostCost(launch_ms=0.2, sync_ms=0.3))
PLAN = Plan((Partition("p", "g0", 100, (Slot("a", 4, 100.0), Slot("b", 4, 100.0))),))


def fleet(ahead_ms: float) -> Fleet:
    (gpu,) = machine(traits=OVERLAP | {Trait.INPUT_POOL}).gpus
    return Fleet((replace(gpu, ahead_ms=ahead_ms),))


def world(ahead_ms: float = AHEAD_MS, name: str = "gpulet", fixed_ms: float = 10.0) -> World:
    """One partition of two models; a batch of n rows takes 10 + n ms, and the host 0.5 ms."""
    profiles = {m: line_profile(m, fixed_ms, 1.0, speedup=1.0) for m in ("a", "b")}
    row = replace(resolve(name), planner=FixedPlan(PLAN), packer=FixedPlan(PLAN))
    made = World(profiles, fleet(ahead_ms), row, physics=HOST)
    made.deploy({"a": 200.0, "b": 200.0})
    made.run(500.0)
    made.log.clear()
    return made


def given(made: World) -> list[tuple[float, Run]]:
    return [(at_ms, c) for at_ms, _, cs in made.log for c in cs if isinstance(c, Run)]


def ends(made: World) -> list[WorkFinished]:
    events = [event for _, event, _ in made.log]
    return [e for e in events if isinstance(e, WorkFinished) and isinstance(e.work, Run)]


def test_the_next_batch_is_given_shortly_before_the_end_and_begins_at_it() -> None:
    made = world()
    began_ms = made.clock.now_ms()
    made.send("a", 200.0)
    made.run(2.0)
    made.send("a", 200.0)
    made.run(100.0)
    (first, _), (second, _) = given(made)
    assert first == began_ms
    assert second == pytest.approx(began_ms + 11.0 - AHEAD_MS)
    assert [one.timing.began_ns for one in ends(made)[1:]] == [ends(made)[0].timing.ended_ns]


def test_what_comes_until_then_joins_it() -> None:
    made = world()
    made.send("a", 200.0)
    made.send_at([made.clock.now_ms() + at_ms for at_ms in (1.0, 5.0, 9.9, 10.1)], "a", 200.0)
    made.run(100.0)
    assert [run.batch.rows for _, run in given(made)] == [1, 3, 1]


def test_without_it_the_partition_is_idle_until_the_end_is_known() -> None:
    made = world(ahead_ms=0.0)
    for _ in range(9):
        made.send("a", 200.0)
    made.run(100.0)
    for before, after in pairwise(ends(made)):
        gap_ns = after.timing.began_ns - before.timing.ended_ns
        assert gap_ns == pytest.approx(0.5e6)


@pytest.mark.parametrize("name", distinct_rows("dispatcher"))
def test_every_system_keeps_a_loaded_accelerator_busy(name: str) -> None:
    """Nothing lies between two batches, where else lies what the host takes; and it serves more."""
    profiles = {m: line_profile(m, 1.0, 0.25, speedup=1.0) for m in ("a", "b")}
    demand = tuple(Demand(m, 1500.0, 50.0, max_batch=8) for m in profiles)
    arrivals = merge_arrivals({m: poisson(1500.0) for m in profiles}, 1.0, seed=1)
    idle: dict[float, float] = {}
    in_time: dict[float, int] = {}
    for ahead_ms in (0.0, AHEAD_MS):
        log: list[WorkFinished] = []

        def see(
            now_ms: float, event: object, commands: object, log: list[WorkFinished] = log
        ) -> None:
            if isinstance(event, WorkFinished) and isinstance(event.work, Run):
                log.append(event)

        scenario = Simulation(
            resolve(name), fleet(ahead_ms), demand, profiles, profiles, arrivals, PLAN,
            device=device_factory(HOST),
        )  # fmt: skip
        record = simulate(scenario, [see])
        in_time[ahead_ms] = sum(one.outcome is Outcome.OK for one in record.served)
        pairs = pairwise(one.timing for one in log)
        gaps_ns = sorted(after.began_ns - before.ended_ns for before, after in pairs)
        idle[ahead_ms] = gaps_ns[len(gaps_ns) // 2]
    assert idle[0.0] >= 0.5e6
    assert idle[AHEAD_MS] == 0
    assert in_time[AHEAD_MS] > in_time[0.0]


def test_nobody_goes_along_who_would_be_late_when_the_batch_begins() -> None:
    made = world(name="triton")
    made.send("a", 200.0)
    made.run(2.0)
    now_ms = made.clock.now_ms()
    late = made.send("a", 8.0 + 11.0)  # it could make it now, but the other runs for 9 ms more
    others = [made.send("a", 60.0) for _ in range(3)]
    made.run(100.0)
    assert [run.batch.rows for _, run in given(made)] == [1, 3]
    assert made.reply_of(late).outcome is Outcome.EXPIRED
    assert made.reply_of(late).request.deadline_ms == now_ms + 19.0
    assert {made.reply_of(one).outcome for one in others} == {Outcome.OK}


def two_given(made: World) -> tuple[Request, Request]:
    """A batch that runs, and one that follows it, both given to the device."""
    first, second = made.send("a", 200.0), made.send("b", 200.0)
    made.run(10.5)
    (live,) = made.state.partitions.values()
    assert [one.run.batch.model for one in live.batches] == ["a", "b"]
    return first, second


def test_a_third_waits_until_one_has_ended() -> None:
    made = world()
    two_given(made)
    made.send("a", 200.0)
    (live,) = made.state.partitions.values()
    assert len(given(made)) == 2
    assert not live.takes(made.clock.now_ms())
    assert live.free_at_ms == pytest.approx(made.clock.now_ms() - 10.5 + 22.0)
    made.run(100.0)
    assert len(given(made)) == 3


def test_a_failed_batch_leaves_the_one_behind_it_alone_and_is_tried_once_more() -> None:
    made = world()
    first, second = two_given(made)
    made.devices["g0"].fail_next(Run, "no luck")
    made.run(200.0)
    assert [len(made.reply_of(one).outputs) for one in (first, second)] == [0, 0]
    assert {made.reply_of(one).outcome for one in (first, second)} == {Outcome.OK}
    assert [(run.batch.model, run.batch.attempt) for _, run in given(made)] == [
        ("a", 1),
        ("b", 1),
        ("a", 2),
    ]


def test_when_the_partition_dies_both_are_tried_once_more() -> None:
    made = world()
    first, second = two_given(made)
    made.devices["g0"].kill("g0.p0")
    made.run(2_000.0)
    attempts = [(run.batch.model, run.batch.attempt) for _, run in given(made)]
    assert sorted(attempts) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert {made.reply_of(one).outcome for one in (first, second)} == {Outcome.OK}
    crashes = {m: len(t.crashes_ms) for m, t in made.state.models.items()}
    assert crashes == {"a": 1, "b": 0}  # what waited behind it is not to blame


def test_a_model_that_leaves_is_unloaded_after_its_batch_behind_another() -> None:
    made = world()
    two_given(made)
    made.runtime.deliver(ModelWithdrawn("b"))
    made.run(500.0)
    kinds = [type(c).__name__ for _, _, cs in made.log for c in cs if not isinstance(c, SendReply)]
    assert [one.failure for one in ends(made)] == [None, None]
    assert "Unload" in kinds
    assert [t.model for t in made.statuses if t.status == "gone"] == ["b"]


def test_who_is_cancelled_behind_another_is_answered_when_its_batch_ends() -> None:
    made = world()
    _, second = two_given(made)
    made.runtime.cancel(second)
    assert all(reply.request is not second for _, reply in made.replies)
    made.run(100.0)
    assert made.reply_of(second).outcome is Outcome.CANCELLED


def test_idle_partitions_come_before_those_about_to_be() -> None:
    slots = (Slot("a", 4, 100.0), Slot("b", 4, 100.0))
    plan = Plan(tuple(Partition(name, "g0", 50, slots) for name in ("p", "q")))
    profiles = {m: line_profile(m, 10.0, 1.0) for m in ("a", "b")}
    row = replace(resolve("gpulet"), planner=FixedPlan(plan), packer=FixedPlan(plan))
    made = World(profiles, fleet(AHEAD_MS), row, physics=HOST)
    made.deploy({"a": 200.0, "b": 200.0})
    made.run(500.0)
    made.log.clear()
    made.send("a", 200.0)
    made.run(10.5)
    made.send("a", 200.0)
    assert [run.partition for _, run in given(made)] == ["g0.p0", "g0.p1"]


def test_an_accelerator_that_begins_late_moves_what_follows() -> None:
    made = world()
    two_given(made)
    made.devices["g0"].stall(30.0)
    made.run(35.0)
    (live,) = made.state.partitions.values()
    ended_ms = next(at_ms for at_ms, e, _ in made.log if e in ends(made))
    assert live.batch is not None and live.batch.run.batch.model == "b"
    assert live.batch.started_ms == ended_ms
    assert live.free_at_ms == pytest.approx(ended_ms + 11.0)
