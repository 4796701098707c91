"""Requests of a sequence run where its state is, or fail with the reason."""

import pytest

from interlace.core.messages import Run, SequenceEnded
from interlace.core.request import Callbacks, Outcome, Request
from interlace.core.sequence import SequenceStep
from tests.builders import World, line_profile, machine

SLO_MS = 200.0


@pytest.fixture
def world() -> World:
    """One model in several partitions."""
    made = World({"a": line_profile("a", 2.0, 1.0)}, machine())
    made.deploy({"a": SLO_MS}, rows_per_s=800.0)
    made.run(1_000)
    assert len(made.state.partitions) > 1
    return made


def _send(world: World, id: int, start: bool = False, end: bool = False) -> Request:
    now_ms, step = world.clock.now_ms(), SequenceStep(id, start, end)
    number = world.runtime.next_id()
    request = Request(number, "a", now_ms, now_ms + SLO_MS, sequence=step)
    world.runtime.submit(request, Callbacks(world._answered))
    return request


def _places(world: World) -> dict[int, set[str]]:
    """The partitions that each sequence ran in."""
    found: dict[int, set[str]] = {}
    for _, _, commands in world.log:
        for run in (one for one in commands if isinstance(one, Run)):
            ids = [one.sequence.id for one in run.batch.requests if one.sequence is not None]
            assert len(set(ids)) == len(ids)
            for id in ids:
                found.setdefault(int(id), set()).add(run.partition)
    return found


def test_a_sequence_stays_in_its_partition_whatever_runs_beside_it(world: World) -> None:
    for round in range(8):
        sent = [_send(world, id, start=round == 0, end=round == 7) for id in range(12)]
        world.run(100)
        assert {world.reply_of(one).outcome for one in sent} == {Outcome.OK}
    places = _places(world)
    assert {len(at) for at in places.values()} == {1}
    assert len(set.union(*places.values())) > 1, "new sequences go to idle partitions"
    assert not world.state.owners


def test_a_lost_partition_loses_its_sequences_and_no_others(world: World) -> None:
    for id in range(6):
        _send(world, id, start=True)
        world.run(20)
    places = {id: min(at) for id, at in _places(world).items()}
    assert len(set(places.values())) > 1
    lost = places[0]
    world.devices["g0"].kill(lost)
    replies = [world.reply_of(_run(world, id)) for id in range(6)]
    for id, reply in enumerate(replies):
        if places[id] == lost:
            assert reply.error is not None and f"sequence {id} of model 'a'" in str(reply.error)
        else:
            assert reply.outcome is Outcome.OK
    assert world.reply_of(_run(world, 0, start=True)).outcome is Outcome.OK


def test_an_ended_sequence_has_no_state(world: World) -> None:
    _run(world, 1, start=True)
    world.runtime.deliver(SequenceEnded("a", 1))
    assert "is lost" in str(world.reply_of(_run(world, 1)).error)


def _run(world: World, id: int, start: bool = False) -> Request:
    request = _send(world, id, start)
    world.run(SLO_MS + 10)
    return request
