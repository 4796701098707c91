"""One life of the gRPC process, seen from the main process: its calls, replies and arena."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import Reason, ServeError
from interlace.core.request import Reply, Request
from interlace.core.tensor import Span, Tensor
from interlace.server.dataplane.call import (
    InferenceCall,
    OnError,
    OnReply,
    RequestedOutput,
    RequestTemplate,
)
from interlace.server.dataplane.plane import failure, output_order
from interlace.server.door.frames import (
    AnswerFrame,
    AskFrame,
    CancelFrame,
    DeliveredFrame,
    ForgetFrame,
    FormFrame,
    GivenUpFrame,
    InferFrame,
    RefusalFrame,
    ToGrpc,
    ToldFrame,
    ToMain,
    pieces,
)
from interlace.shm.arena import Arena

_ASKED_BYTES_MAX: Final = 1 << 30


class Plane(Protocol):
    """What the door needs of the data plane."""

    def infer(
        self,
        call: InferenceCall,
        on_reply: OnReply,
        on_error: OnError,
        on_give_up: OnError | None = None,
    ) -> Request | None: ...
    def cancel(self, request: Request) -> None: ...
    def delivered(self, reply: Reply) -> None: ...


class Office(Protocol):
    """What the door needs of administration."""

    def answer(
        self, method: str, body: dict[str, Any]
    ) -> dict[str, object] | Awaitable[dict[str, object]]: ...


#: Outputs that are wanted as classes: their bytes by position, and all outputs as they then are.
Ranked = Callable[[InferenceCall, tuple[Tensor, ...]], tuple[tuple[Tensor, ...], dict[int, bytes]]]


class _Known:
    """A form as calls are made from it."""

    __slots__ = ("form", "frame", "ranks", "wanted")

    def __init__(self, frame: FormFrame) -> None:
        self.frame = frame
        self.form = RequestTemplate()
        self.wanted = tuple(RequestedOutput(name, classes) for name, classes in frame.outputs)
        self.ranks = any(classes for _, classes in frame.outputs)


class Session:
    """Frames from one gRPC process acted on, until it is gone and its last reply has come."""

    def __init__(
        self,
        plane: Plane,
        office: Office,
        ranked: Ranked,
        arena: Arena,
        send: Callable[[ToGrpc], None],
        forget: Callable[[int], None],
    ) -> None:
        """``send`` gathers frames for the gRPC process; ``forget`` gets the arena's number at the
        end."""
        self._plane = plane
        self._office = office
        self._ranked = ranked
        self._arena = arena
        self._number = arena.number
        self._send = send
        self._forget = forget
        self._forms: dict[int, _Known] = {}
        self._calls: dict[int, Request | None] = {}
        self._replies: dict[int, Reply] = {}
        self._asked: dict[int, bytearray] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._gone = False

    @property
    def in_flight(self) -> int:
        """Calls that have no answer yet."""
        return len(self._calls)

    def act(self, frame: ToMain) -> None:
        """Do what a frame says."""
        if isinstance(frame, InferFrame):
            self._infer(frame)
        elif isinstance(frame, DeliveredFrame):
            for number in frame.calls:
                self._plane.delivered(self._replies.pop(number))
        elif isinstance(frame, FormFrame):
            self._forms[frame.number] = _Known(frame)
        elif isinstance(frame, CancelFrame):
            request = self._calls.get(frame.call)
            if request is not None:
                self._plane.cancel(request)
        elif isinstance(frame, AskFrame):
            self._ask(frame)
        elif isinstance(frame, ForgetFrame):
            self._forms.clear()

    def unsent(self, number: int) -> None:
        """An answer that could not be sent after all."""
        self._plane.delivered(self._replies.pop(number))

    def lost(self) -> None:
        """The process is gone: nobody waits for its calls. Twice is once."""
        if self._gone:
            return
        self._gone = True
        for task in self._tasks:
            task.cancel()
        for request in list(self._calls.values()):
            if request is not None:
                self._plane.cancel(request)
        for reply in self._replies.values():
            self._plane.delivered(reply)
        self._replies.clear()
        self._let_go()

    def _infer(self, frame: InferFrame) -> None:
        known = self._forms[frame.form]
        form, spans, arena = known.frame, frame.spans, self._number
        inputs = tuple(
            [
                Tensor(name, datatype, shape, Span(arena, spans[2 * i], spans[2 * i + 1]))
                for i, (name, datatype, shape) in enumerate(form.inputs)
            ]
        )
        call = InferenceCall(
            form.model,
            form.version,
            frame.id,
            inputs,
            known.wanted,
            form.parameters,
            frame.budget_ms,
            known.form,
        )
        number = frame.call
        self._calls[number] = None
        request = self._plane.infer(
            call,
            partial(self._reply, number, known, call),
            partial(self._refuse, number),
            partial(self._give_up, number),
        )
        if number in self._calls:
            self._calls[number] = request

    def _reply(self, number: int, known: _Known, call: InferenceCall, reply: Reply) -> None:
        del self._calls[number]
        if self._gone:
            self._plane.delivered(reply)
            self._let_go()
            return
        error = failure(reply)
        if error is None:
            try:
                self._send(self._answer(number, known, call, reply))
                self._replies[number] = reply
                return
            except ServeError as fault:
                error = fault
        self._plane.delivered(reply)
        self._send(_refusal(number, error))

    def _answer(self, number: int, known: _Known, call: InferenceCall, reply: Reply) -> AnswerFrame:
        outputs = reply.outputs
        inline: dict[int, bytes] = {}
        if known.wanted:
            outputs = tuple([outputs[i] for i in output_order(known.wanted, outputs)])
            if known.ranks:
                outputs, inline = self._ranked(call, outputs)
        key = DeploymentKey.parse(reply.request.model)
        return AnswerFrame(
            number,
            key.name,
            str(key.version),
            tuple([(t.name, t.datatype, t.shape) for t in outputs]),
            tuple([number for t in outputs for number in t.span]),
            inline,
        )

    def _refuse(self, number: int, error: ServeError) -> None:
        del self._calls[number]
        self._send(_refusal(number, error))

    def _give_up(self, number: int, error: ServeError) -> None:
        if not self._gone:
            self._send(GivenUpFrame(number, error.reason.value, error.detail[:4096]))

    def _let_go(self) -> None:
        if self._gone and not self._calls:
            self._forget(self._number)
            self._arena.close()

    # -------------------------------------------------------------------------- administration

    def _ask(self, frame: AskFrame) -> None:
        data = self._asked.pop(frame.call, None) or bytearray()
        data += frame.piece
        if not frame.last:
            self._asked[frame.call] = data
            return
        try:
            if len(data) > _ASKED_BYTES_MAX:
                raise ServeError(Reason.TOO_LARGE, f"a request of {len(data)} bytes")
            result = self._office.answer(frame.method, msgspec.msgpack.decode(data))
        except ServeError as error:
            self._send(_refusal(frame.call, error))
            return
        if isinstance(result, dict):
            self._tell(frame.call, result)
            return
        task = asyncio.ensure_future(self._tell_later(frame.call, result))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_later(self, number: int, result: Awaitable[dict[str, object]]) -> None:
        try:
            self._tell(number, await result)
        except ServeError as error:
            self._send(_refusal(number, error))

    def _tell(self, number: int, result: dict[str, object]) -> None:
        for piece, last in pieces(msgspec.msgpack.encode(result)):
            self._send(ToldFrame(number, piece, last))


def _refusal(number: int, error: ServeError) -> RefusalFrame:
    return RefusalFrame(number, error.reason.value, error.detail[:4096], error.retry_after_ms)
