"""Batches whose code waits for other models: their partition runs others meanwhile."""

from dataclasses import replace

from interlace.core.messages import (
    BatchWaits,
    ModelWithdrawn,
    ReleasePartition,
    Run,
    Unload,
    WorkFinished,
)
from interlace.core.plan import Partition, Plan, Slot
from interlace.core.request import Outcome
from interlace.policy.catalog import resolve
from interlace.sim.run import FixedPlan
from tests.builders import World, line_profile, machine

PLAN = Plan((Partition("p", "g0", 100, (Slot("a", 4, 10.0), Slot("b", 4, 10.0))),))


def world() -> World:
    profiles = {model: line_profile(model, 10.0, 1.0, speedup=1.0) for model in ("a", "b")}
    row = replace(resolve("interlace"), planner=FixedPlan(PLAN), packer=FixedPlan(PLAN))
    made = World(profiles, machine(), row)
    made.deploy({"a": 500.0, "b": 500.0})
    made.run(500.0)
    made.log.clear()
    return made


def runs(made: World) -> list[str]:
    return [c.batch.model for _, _, cs in made.log for c in cs if isinstance(c, Run)]


def test_a_partition_runs_others_but_not_the_model_that_waits() -> None:
    made = world()
    first = made.send("a", 500.0)
    made.run(1.0)
    (run,) = [c for _, _, cs in made.log for c in cs if isinstance(c, Run)]
    made.runtime.deliver(BatchWaits("g0", run.partition, run.batch.id))
    others = [made.send(model, 500.0) for model in ("a", "b")]
    assert runs(made) == ["a", "b"]
    live = made.state.partitions[run.partition]
    assert [one.run.batch.model for one in live.batches] == ["b", "a"]
    made.run(100.0)
    assert runs(made) == ["a", "b", "a"]
    assert {made.reply_of(one).outcome for one in (first, *others)} == {Outcome.OK}


def test_nothing_is_unloaded_while_a_batch_waits() -> None:
    made = World({"a": line_profile("a", 10.0, 1.0, speedup=1.0)}, machine())
    made.deploy({"a": 500.0})
    made.run(500.0)
    first = made.send("a", 500.0)
    made.run(1.0)
    (run,) = [c for _, _, cs in made.log for c in cs if isinstance(c, Run)]
    made.runtime.deliver(BatchWaits("g0", run.partition, run.batch.id))
    made.runtime.deliver(ModelWithdrawn("a"))
    made.run(2000.0)
    (ended,) = [at for at, event, _ in made.log if isinstance(event, WorkFinished)
                and event.work is run]  # fmt: skip
    gone = [at for at, _, cs in made.log for c in cs if isinstance(c, Unload | ReleasePartition)
            and c.partition == run.partition]  # fmt: skip
    assert gone and min(gone) >= ended
    assert made.reply_of(first).outcome is Outcome.OK and not made.state.models


def test_others_join_a_batch_that_is_executed_again_up_to_its_rows() -> None:
    made = world()
    first = made.send("a", 500.0)
    made.run(1.0)
    (run,) = [c for _, _, cs in made.log for c in cs if isinstance(c, Run)]
    made.runtime.deliver(BatchWaits("g0", run.partition, run.batch.id, joins=3))
    others = []
    for _ in range(3):
        others.append(made.send("a", 500.0))
        joined = [c for _, _, cs in made.log for c in cs if isinstance(c, Run)][-1]
        made.runtime.deliver(BatchWaits("g0", joined.partition, joined.batch.id, joins=3))
    assert runs(made) == ["a", "a", "a"]
    live = made.state.partitions[run.partition]
    assert live.joining_rows("a") == 0 and live.joining_rows("b") == -1
    made.run(200.0)
    assert runs(made) == ["a", "a", "a", "a"]
    assert {made.reply_of(one).outcome for one in (first, *others)} == {Outcome.OK}
