"""Sequences in virtual time: order, slots, idle times, and no memory that stays."""

from __future__ import annotations

from typing import Any

import pytest

from interlace.apps.parts import TensorMemory
from interlace.apps.sequences import SequenceRuntime
from interlace.core.messages import SequenceEnded
from interlace.core.model import Format, Model, ServiceTerms
from interlace.core.request import Callbacks, Outcome, Reply, Request
from interlace.core.sequence import (
    ControlInput,
    ControlKind,
    SequenceStep,
    SequenceTerms,
    StateTensor,
)
from interlace.core.tensor import Signature, TensorSpec
from interlace.runtime.clock import SimClock
from tests.server.fakes import Memory

X, Y, STATE = (TensorSpec(name, "FP32", (1,)) for name in ("x", "y", "state"))
CORRID = ControlInput(TensorSpec("id", "UINT32", (1,)), ControlKind.CORRID)
SLO_MS = 500.0


class Below:
    """What sequences are handed to: it answers when it is told to."""

    def __init__(self, memory: Memory) -> None:
        self.clock = SimClock()
        self.asked: list[tuple[Request, Any]] = []
        self.ended: list[SequenceEnded] = []
        self._memory = memory

    def submit(self, request: Request, caller: Callbacks) -> None:
        self.asked.append((request, caller.on_reply))

    def deliver(self, event: SequenceEnded) -> None:
        self.ended.append(event)

    def cancel(self, request: Request) -> None:
        self.end(Outcome.CANCELLED)

    def delivered(self, reply: Reply) -> None:
        """Nothing is held here."""

    def end(self, outcome: Outcome = Outcome.OK) -> Request:
        """Answer the oldest request; its outputs are what it got."""
        request, answer = self.asked.pop(0)
        outputs = tuple(
            one._replace(name={"state": "new", "x": "y"}.get(one.name, one.name))
            for one in request.inputs
        )
        answer(Reply(request, outcome, outputs))
        return request


class World:
    def __init__(self, format: Format, candidates: int) -> None:
        self.memory = Memory()
        self.below = Below(self.memory)
        states = () if format is Format.PYTHON else (StateTensor(STATE, "new", (1,)),)
        terms = SequenceTerms(1_000.0, candidates, (CORRID,), states)
        self.model = Model(
            "m", 1, format, "", "d", Signature((X,), (Y,), True, 4), ServiceTerms(SLO_MS),
            sequences=terms,
        )  # fmt: skip
        tensors = TensorMemory(self.memory.arena, self.memory.map)
        self.sequences = SequenceRuntime(
            self.below,  # type: ignore[arg-type]  # what it needs of a runtime
            lambda *name: self.model,
            lambda *step: None,
            tensors,
            1,
        )
        self.replies: dict[int, Reply] = {}
        self._ids = 0

    def send(self, id: int | str, start: bool = False, end: bool = False) -> Request:
        self._ids += 1
        now_ms, step = self.below.clock.now_ms(), SequenceStep(id, start, end)
        request = Request(self._ids, "m/1#0", now_ms, now_ms + SLO_MS, sequence=step)
        answer = Callbacks(lambda reply: self.replies.update({request.id: reply}))
        self.sequences.submit(request, answer)
        return request

    def run(self, for_ms: float) -> None:
        self.below.clock.run(self.below.clock.now_ms() + for_ms)

    def outcome(self, request: Request) -> Outcome | None:
        return self.replies[request.id].outcome if request.id in self.replies else None


@pytest.fixture(params=[Format.PYTHON, Format.ONNX], ids=lambda format: format.value)
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param, 2)


def test_the_requests_of_a_sequence_run_one_after_the_other(world: World) -> None:
    first, second, third = world.send(1, start=True), world.send(1), world.send(1, end=True)
    assert len(world.below.asked) == 1
    kept = world.below.end()
    assert world.outcome(first) is Outcome.OK and kept.id == first.id
    assert [one.name for one in world.replies[first.id].outputs if one.name == "new"] == []
    assert (kept.sequence is not None) == (world.model.format is Format.PYTHON)
    assert bytes(world.memory.arena.view(kept.inputs[0].span.offset, 4)) == b"\1\0\0\0"
    world.sequences.cancel(second)
    assert world.outcome(second) is Outcome.CANCELLED
    world.below.end()
    assert world.outcome(third) is Outcome.OK
    assert world.memory.arena.used_bytes == 0
    assert len(world.below.ended) == (world.model.format is Format.PYTHON)


def test_a_new_sequence_waits_for_a_slot_until_its_deadline(world: World) -> None:
    for id in (1, 2):
        world.send(id, start=True)
        world.below.end()
    late, waiting = world.send(3, start=True), world.send(4, start=True)
    world.run(400)
    assert world.outcome(late) is None and not world.below.asked
    world.send(2, end=True)
    world.below.end()  # its slot goes to 3
    world.below.end()
    assert world.outcome(late) is Outcome.OK
    world.run(200)
    assert world.outcome(waiting) is Outcome.EXPIRED
    error = world.replies[waiting.id].error
    assert error is not None and "2 sequences are live, as many as max_cand" in error.detail
    world.run(2_000)
    assert world.memory.arena.used_bytes == 0 and not world.sequences._live


def test_an_idle_sequence_ends_and_one_that_runs_does_not(world: World) -> None:
    world.send(1, start=True)
    world.run(5_000)
    world.below.end()
    world.run(900)
    alive = world.send(1)
    world.below.end()
    assert world.outcome(alive) is Outcome.OK
    world.run(1_100)
    assert world.outcome(world.send(1)) is Outcome.REFUSED
    assert world.memory.arena.used_bytes == 0


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.FAILED])
def test_a_sequence_whose_start_fails_has_not_begun(world: World, outcome: Outcome) -> None:
    world.send(1, start=True)
    following = world.send(1)
    world.below.end(outcome)
    assert world.outcome(following) is Outcome.REFUSED
    world.send(1, start=True)
    world.below.end()
    refused = world.send(1)
    world.below.end(outcome)
    assert world.outcome(refused) is outcome
    again = world.send(1, end=True)
    world.below.end()
    assert world.outcome(again) is Outcome.OK
    assert world.memory.arena.used_bytes == 0


def test_an_id_of_text_does_not_fit_a_number(world: World) -> None:
    request = world.send("a", start=True)
    error = world.replies[request.id].error
    assert error is not None and "sequence_id 'a' is text; the model's control" in error.detail
    assert world.memory.arena.used_bytes == 0
