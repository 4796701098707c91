"""Calls of other models by the code in one worker: begun, answered, and let go of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import Run
from interlace.core.request import BlsCall, PartialResponse, Reply, Request
from interlace.device.base import LEARNED, Callees
from interlace.device.process.batch_frames import error_result
from interlace.device.process.output_arena import OutputArena
from interlace.device.process.wire import CallAnswered, CallModel, CallsLeft, RequestResult

_MEASURED: Final = f"it calls '{{}}', and is measured alone: {LEARNED}"


@dataclass(slots=True)
class _Call:
    batch: int
    request: Request | None = None
    reply: Reply | None = None
    answered: bool = False
    final: bool = False  #: the worker has its last response


def ask_server(
    callees: Callees | None,
    asked: CallModel,
    caller: str,
    limit_s: float,
    answer: Callable[[Reply | ServeError | None], None],
) -> None:
    """Submit what the code of a model asks the server while it is loaded."""
    if callees is None:
        text = f"no server to {asked.control} '{asked.model}'"
        answer(ServeError(Reason.UNSUPPORTED, text))
        return
    limit_us = int(1e6 * limit_s)
    inputs, context = asked.inputs, asked.context
    made = BlsCall(
        caller, asked.model, asked.version, inputs, (), context, inf, limit_us, asked.control
    )
    callees.call(made, answer)


class OutgoingCalls:
    """The calls of one partition's batches.

    Inputs are held in the worker's arena until a call is answered, whoever dies. Outputs are held
    until the worker lets go of them or the batch ends. A batch that is measured calls nothing: what
    it would measure is another model.
    """

    def __init__(
        self, outputs: OutputArena, send: Callable[[int, CallAnswered, Iterable[int]], None]
    ) -> None:
        """``send`` sends a frame for a batch, with which the worker needs these arenas."""
        self.callees: Callees | None = None
        self._outputs = outputs
        self._send = send
        self._calls: dict[int, _Call] = {}
        self._responses: dict[int, tuple[int, PartialResponse]] = {}  #: with its batch
        self._numbers = count(1)
        self._ended: set[int] = set()  #: batches whose calls are not all answered
        self._measured: dict[int, str] = {}  #: the model that a measured batch calls

    def begin_load(self, asked: CallModel, caller: str, limit_s: float) -> None:
        """Submit what a model asks the server while it is loaded; answered in half of its time."""
        for number in asked.released:
            self._let_go(number)
        self._calls[asked.call] = _Call(asked.batch)
        self._outputs.lend(asked.call)
        answer = partial(self._answered, asked.call)
        ask_server(self.callees, asked, caller, limit_s / 2.0, answer)

    def begin(self, asked: CallModel, run: Run) -> None:
        """Submit a call of a running batch."""
        for number in asked.released:
            self._let_go(number)
        deadline_ms = max(request.deadline_ms for request in run.batch.requests)
        if deadline_ms == inf or self.callees is None:
            self._measured[asked.batch] = asked.model
            said = _MEASURED.format(asked.model)
            result = RequestResult((), Reason.NOT_READY.value, said)
            self._send(asked.batch, CallAnswered(asked.call, result), ())
            return
        if any(request.streams for request in run.batch.requests):
            deadline_ms = inf  # it goes on as long as its responses come
        call = self._calls[asked.call] = _Call(asked.batch)
        self._outputs.lend(asked.call)
        made = BlsCall(
            run.batch.model,
            asked.model,
            asked.version,
            asked.inputs,
            asked.outputs,
            asked.context,
            deadline_ms,
            asked.timeout_us,
            asked.control,
        )
        respond = partial(self._responded, asked.call, call) if asked.streams else None
        call.request = self.callees.call(made, partial(self._answered, asked.call), respond)

    def leave(self, frame: CallsLeft) -> None:
        """The worker reads outputs no more, or waits for no more responses."""
        for number in frame.released:
            self._let_go(number)
        call = self._calls.get(frame.cancelled)
        if call is not None and call.request and not call.answered and self.callees:
            self.callees.cancel(call.request)

    def waits(self, batch: int) -> bool:
        """Whether a call of the batch is not answered yet."""
        return any(one.batch == batch and not one.answered for one in self._calls.values())

    def end(self, batch: int) -> str:
        """A batch ended: nobody reads its calls' outputs. Returns why it says nothing, if so."""
        self._ended.add(batch)
        for call in list(self._calls.values()):
            if call.batch == batch and not call.answered and call.request and self.callees:
                self.callees.cancel(call.request)
        self._forget_ended(batch)
        called = self._measured.pop(batch, "")
        return _MEASURED.format(called) if called else ""

    def _responded(self, number: int, call: _Call, response: PartialResponse) -> None:
        """Pass on a response of a decoupled model."""
        if call.batch in self._ended or number not in self._calls:
            response.release()
            return
        call.final = response.final or response.error is not None
        lent = 0
        if response.error is not None:
            response.release()
            result = error_result(response.error)
        else:
            lent = next(self._numbers)
            self._responses[lent] = call.batch, response
            result = RequestResult(response.outputs, parameters=response.parameters)
        frame = CallAnswered(number, result, lent, call.final, ended=False)
        self._send(call.batch, frame, {tensor.span.arena for tensor in result.outputs})

    def _answered(self, number: int, answer: Reply | ServeError | None) -> None:
        call = self._calls[number]
        call.answered, batch = True, call.batch
        self._outputs.returned(number)
        if isinstance(answer, Reply):
            call.reply = answer
            result = RequestResult(answer.outputs, parameters=answer.parameters)
        else:
            result = RequestResult(()) if answer is None else error_result(answer)
        self._send(batch, CallAnswered(number, result), {one.span.arena for one in result.outputs})
        self._forget_ended(batch)

    def _forget_ended(self, batch: int) -> None:
        """Outputs of a call may be inputs of another, which runs although nobody waits for it."""
        if batch in self._ended and not self.waits(batch):
            self._ended.discard(batch)
            for number in [one for one, call in self._calls.items() if call.batch == batch]:
                self._let_go(number)
            for number in [one for one, (of, _) in self._responses.items() if of == batch]:
                self._let_go(number)

    def _let_go(self, number: int) -> None:
        if number in self._responses:
            self._responses.pop(number)[1].release()
        call = self._calls.pop(number, None)
        if call is not None and call.reply is not None and self.callees is not None:
            self.callees.delivered(call.reply)
