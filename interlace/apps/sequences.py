"""Sequences between the data plane and the runtime: order, slots, control tensors, kept states."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import structs

from interlace.apps.parts import TensorMemory
from interlace.apps.runner import AppRuntime, FindModel, OnStep
from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import Reason, ServeError, bad_input
from interlace.core.messages import SequenceEnded
from interlace.core.model import Format, Model
from interlace.core.request import Callbacks, Outcome, Reply, Request
from interlace.core.sequence import SequenceStep, StateTensor
from interlace.core.tensor import BYTES, Tensor, TensorSpec, element_count
from interlace.formats.arrays import NUMPY_TYPES, control_array, wire_bytes
from interlace.runtime.runtime import Runtime
from interlace.shm.blocks import ArenaBlocks

_DONE: Final = (Outcome.OK, Outcome.LATE)
_NOT_RUN: Final = (Outcome.REFUSED, Outcome.EXPIRED)
#: Live sequences of a model that sets no limit.
_MOST: Final = 65_536


@dataclass(slots=True)
class _Asked:
    """A request of a sequence, and who hears of it."""

    request: Request
    step: SequenceStep
    caller: Callbacks


@dataclass(slots=True)
class _Sequence:
    """A live sequence: the requests that wait for the running one, and its tensors."""

    key: tuple[str, int | str]
    model: Model
    last_ms: float
    waiting: deque[_Asked] = field(default_factory=deque)
    running: bool = False
    begun: bool = False
    placed: bool = False  #: it has one of the model's slots
    states: tuple[Tensor, ...] = ()
    blocks: ArenaBlocks | None = None  #: of its states


class SequenceRuntime(AppRuntime):
    """An ``AppRuntime`` that takes requests with a ``sequence``, too.

    A sequence has one request under way at a time; the others wait behind it, and new sequences for
    a slot. States are kept here, in the server's arena, so their requests run anywhere. The state
    of code is in its worker: such requests keep their ``sequence``, and run there.
    """

    def __init__(
        self,
        runtime: Runtime,
        find: FindModel,
        on_step: OnStep,
        memory: TensorMemory,
        intermediate_bytes: int,
    ) -> None:
        super().__init__(runtime, find, on_step, memory, intermediate_bytes)
        self._live: dict[tuple[str, int | str], _Sequence] = {}
        self._slots: dict[str, int] = {}  #: in use, by deployment key
        self._backlog: dict[str, deque[_Sequence]] = {}

    def submit(self, request: Request, caller: Callbacks) -> None:
        """As ``Runtime.submit``."""
        step = request.sequence
        if step is None:
            super().submit(request, caller)
            return
        key = (request.model, step.id)
        sequence = self._live.get(key)
        if sequence is None and not step.start:
            caller.on_reply(Reply(request, Outcome.REFUSED, error=_no_start(request, step)))
            return
        if sequence is None:
            name = DeploymentKey.parse(request.model)
            model = self.find(name.name, str(name.version))
            sequence = self._live[key] = _Sequence(key, model, self.clock.now_ms())
            self._place(sequence)
            self._look_later(sequence)
        asked = _Asked(request, step, caller)
        sequence.waiting.append(asked)
        if sequence.placed:
            self._go_on(sequence)
        else:
            self.clock.call_at(request.deadline_ms, partial(self._expire, sequence, asked))

    def cancel(self, request: Request) -> None:
        """As ``Runtime.cancel``; the sequence goes on."""
        step = request.sequence
        sequence = None if step is None else self._live.get((request.model, step.id))
        for asked in sequence.waiting if sequence is not None else ():
            if asked.request is request and sequence is not None:
                sequence.waiting.remove(asked)
                error = ServeError(Reason.CANCELLED, "the client went away")
                asked.caller.on_reply(Reply(request, Outcome.CANCELLED, error=error))
                return
        super().cancel(request)

    # --------------------------------------------------------------------------- slots and ends

    def _place(self, sequence: _Sequence) -> None:
        """Give a sequence a slot, or have it wait for one."""
        key, terms = sequence.key[0], sequence.model.sequences
        most = terms.candidates if terms is not None and terms.candidates else _MOST
        if self._slots.get(key, 0) < most:
            self._slots[key] = self._slots.get(key, 0) + 1
            sequence.placed = True
        else:
            self._backlog.setdefault(key, deque()).append(sequence)

    def _expire(self, sequence: _Sequence, asked: _Asked) -> None:
        """Answer a request whose sequence had no slot in time."""
        if sequence.placed or asked not in sequence.waiting:
            return
        sequence.waiting.remove(asked)
        limit = self._slots.get(sequence.key[0], 0)
        error = ServeError(
            Reason.DEADLINE,
            f"no slot was free for sequence {asked.step.id} in time: {limit} sequences are live, "
            f"as many as max_candidate_sequences allows",
        )
        asked.caller.on_reply(Reply(asked.request, Outcome.EXPIRED, error=error))

    def _look_later(self, sequence: _Sequence) -> None:
        terms = sequence.model.sequences
        idle_ms = terms.idle_ms if terms is not None else 0.0
        self.clock.call_at(sequence.last_ms + idle_ms, partial(self._look, sequence, idle_ms))

    def _look(self, sequence: _Sequence, idle_ms: float) -> None:
        """End a sequence that was idle for too long."""
        if self._live.get(sequence.key) is not sequence:
            return
        now_ms = self.clock.now_ms()
        if sequence.running or sequence.waiting:
            sequence.last_ms = now_ms
        if now_ms < sequence.last_ms + idle_ms:
            self._look_later(sequence)
            return
        sequence.begun = False
        self._go_on(sequence)

    def _remove(self, sequence: _Sequence) -> None:
        key = sequence.key[0]
        del self._live[sequence.key]
        self._drop_states(sequence)
        if sequence.model.format is Format.PYTHON:
            self.runtime.deliver(SequenceEnded(*sequence.key))
        backlog = self._backlog.get(key, deque())
        if not sequence.placed:
            backlog.remove(sequence)
        elif backlog:
            following = backlog.popleft()
            following.placed = True
            self._go_on(following)
        else:
            self._slots[key] -= 1
        if not backlog:
            self._backlog.pop(key, None)

    def _drop_states(self, sequence: _Sequence) -> None:
        blocks, sequence.blocks, sequence.states = sequence.blocks, None, ()
        if blocks is not None:
            blocks.free()

    # ------------------------------------------------------------------------------ one request

    def _go_on(self, sequence: _Sequence) -> None:
        """Begin the next request, if none runs; without any the sequence may have ended."""
        while sequence.waiting and not sequence.running:
            asked = sequence.waiting.popleft()
            if asked.step.start:
                sequence.begun = True
                self._drop_states(sequence)
            if not sequence.begun:
                error = _no_start(asked.request, asked.step)
                asked.caller.on_reply(Reply(asked.request, Outcome.REFUSED, error=error))
                continue
            try:
                request, blocks = self._request(sequence, asked)
            except ServeError as error:
                sequence.begun = sequence.begun and not asked.step.start
                asked.caller.on_reply(Reply(asked.request, Outcome.REFUSED, error=error))
                continue
            sequence.running = True
            heard = partial(self._heard, sequence, asked, blocks)
            super().submit(request, structs.replace(asked.caller, on_reply=heard))
        over = not (sequence.begun or sequence.running or sequence.waiting)
        if over and self._live.get(sequence.key) is sequence:
            self._remove(sequence)

    def _request(self, sequence: _Sequence, asked: _Asked) -> tuple[Request, ArenaBlocks]:
        """The request as the model gets it, and the blocks of what was added.

        Raises:
            ServeError: the id does not fit its control tensor, or there is no room.
        """
        model, given = sequence.model, asked.request
        terms, batched = model.sequences, model.signature.batched
        assert terms is not None, "only models with sequences have requests with one"
        blocks = self.memory.blocks()
        try:
            added = [
                self._tensor(
                    blocks,
                    one.spec,
                    (1,) * len(one.spec.dims),
                    batched,
                    wire_bytes(control_array(one, asked.step, (1,))),
                )
                for one in terms.controls
            ]
            states = sequence.states or tuple(
                self._tensor(blocks, one.spec, one.first_dims, batched, _first(one))
                for one in terms.states
            )
        except BaseException:
            blocks.free()
            raise
        outputs = given.outputs and (*given.outputs, *(one.output for one in terms.states))
        shapes = tuple((one.name, one.shape) for one in states)
        assert isinstance(given.shape, tuple), "the data plane gives names and sizes"
        request = structs.replace(
            given,
            inputs=(*given.inputs, *added, *states),
            outputs=outputs,
            shape=(*given.shape, *shapes),
            sequence=asked.step if model.format is Format.PYTHON else None,
        )
        return request, blocks

    def _tensor(
        self,
        blocks: ArenaBlocks,
        spec: TensorSpec,
        dims: tuple[int, ...],
        batched: bool,
        data: bytes,
    ) -> Tensor:
        shape = (1, *dims) if batched else dims
        return self.memory.write(blocks, spec.name, spec.datatype, shape, data)

    def _heard(self, sequence: _Sequence, asked: _Asked, blocks: ArenaBlocks, reply: Reply) -> None:
        sequence.running = False
        sequence.last_ms = self.clock.now_ms()
        step, outcome = asked.step, reply.outcome
        reply = structs.replace(reply, request=asked.request)
        if outcome in _DONE:
            try:
                reply = self._keep_states(sequence, reply)
            except ServeError as error:
                self.delivered(reply)
                reply = Reply(asked.request, Outcome.FAILED, error=error, timing=reply.timing)
        blocks.free()
        if (step.end and outcome not in _NOT_RUN) or (step.start and outcome not in _DONE):
            sequence.begun = False
        asked.caller.on_reply(reply)
        self._go_on(sequence)

    def _keep_states(self, sequence: _Sequence, reply: Reply) -> Reply:
        """Copy the states out of a reply.

        Raises:
            ServeError: the model left one out, or there is no room.
        """
        terms = sequence.model.sequences
        if terms is None or not terms.states:
            return reply
        found = {tensor.name: tensor for tensor in reply.outputs}
        missing = [one.output for one in terms.states if one.output not in found]
        if missing:
            raise ServeError(Reason.BACKEND, f"the model gave no state '{missing[0]}'")
        copies, blocks = self.memory.join([[found[one.output] for one in terms.states]])
        self._drop_states(sequence)
        sequence.blocks = blocks
        sequence.states = tuple(
            copy._replace(name=one.spec.name)
            for copy, one in zip(copies, terms.states, strict=True)
        )
        hidden = {one.output for one in terms.states}
        outputs = tuple(tensor for tensor in reply.outputs if tensor.name not in hidden)
        return structs.replace(reply, outputs=outputs)


def _first(state: StateTensor) -> bytes:
    """The state of a sequence that begins: its file, or zeros."""
    if state.file:
        return Path(state.file).read_bytes()
    item = 4 if state.spec.datatype == BYTES else NUMPY_TYPES[state.spec.datatype].itemsize
    return bytes(item * element_count(state.first_dims))


def _no_start(request: Request, step: SequenceStep) -> ServeError:
    name = DeploymentKey.parse(request.model).name
    return bad_input(
        f"inference request for sequence {step.id} to model '{name}' must specify the START flag "
        f"on the first request of the sequence"
    )
