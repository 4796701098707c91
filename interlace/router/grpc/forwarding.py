"""ModelInfer and ModelStreamInfer, passed to one node after another until one answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from interlace.core.errors import ServeError
from interlace.router.attempts import Attempts, joined
from interlace.router.directory import NodeDirectory
from interlace.router.grpc.node_channel import NodeCall
from interlace.router.grpc.passed_calls import CallEnd
from interlace.server.grpc.buffered_sink import BufferedSink
from interlace.server.grpc.frame_writer import Buffer
from interlace.server.grpc.headers import TRAILERS_OK
from interlace.server.grpc.infer_wire import (
    FINAL_RESPONSE,
    addressee,
    scan,
    stream_error,
    stream_response,
)
from interlace.server.grpc.limits import GrpcLimits
from interlace.server.grpc.rpc import MessageSink
from interlace.server.grpc.service import MODEL_INFER
from interlace.server.grpc.status import STATUS, GrpcStatus
from interlace.server.grpc.stream import GrpcStream
from interlace.server.heap_budget import HeapBudget, HeapReservation

#: What a node says that another one may see otherwise.
_ELSEWHERE: Final = frozenset(
    (GrpcStatus.RESOURCE_EXHAUSTED, GrpcStatus.UNAVAILABLE, GrpcStatus.NOT_FOUND)
)


class CallForwarder:
    """Passes calls on as they are; what is not answered yet is held within ``budget``."""

    def __init__(self, directory: NodeDirectory, limits: GrpcLimits, budget: HeapBudget) -> None:
        self.directory = directory
        self.limits = limits
        self.budget = budget
        self.count = 0  #: calls without an answer

    def unary(self, stream: GrpcStream) -> ModelInferCall:
        """A ModelInfer call."""
        return ModelInferCall(stream, self)

    def streaming(
        self, stream: GrpcStream, forget: Callable[[ModelStreamInferCall], None]
    ) -> ModelStreamInferCall:
        """A ModelStreamInfer call; ``forget`` is called once, when it has ended."""
        return ModelStreamInferCall(stream, self, forget)

    def sink(
        self,
        stream: GrpcStream,
        compressed: bool,
        done: Callable[[memoryview], None],
        failed: Callable[[ServeError], None],
    ) -> BufferedSink:
        """Where a message that comes in pieces, or compressed, is put."""
        limits = self.limits
        if compressed:
            return BufferedSink(limits.max_unpacked_bytes, self.budget, done, failed, stream)
        return BufferedSink(limits.max_message_bytes, self.budget, done, failed)


class Caller(Protocol):
    """Waits for the answer of a request; exactly one of the two is called."""

    def answered(
        self, passed: ForwardedCall, message: memoryview, sent: Callable[[], None]
    ) -> None:
        """A node's response; ``sent`` must be called once its bytes are no longer needed."""
        ...

    def failed(self, passed: ForwardedCall, end: CallEnd) -> None:
        """There is none, and why."""
        ...


class ForwardedCall:
    """One ModelInferRequest, and the node that has it now."""

    __slots__ = ("_attempts", "_budget_ms", "_call", "_caller", "_forwarder", "_refusal",
                 "_reserved", "_version", "message")  # fmt: skip

    def __init__(
        self,
        forwarder: CallForwarder,
        caller: Caller,
        message: memoryview,
        budget_ms: float | None,
    ) -> None:
        """Hold a request; nothing is sent before ``start``.

        Raises:
            ServeError: there is no room for it.
        """
        self.message = message
        self._forwarder = forwarder
        self._caller = caller
        self._budget_ms = budget_ms
        self._attempts: Attempts | None = None
        self._call: NodeCall | None = None
        self._refusal: CallEnd | None = None
        self._version = ""  #: of the model, if one was asked for
        self._reserved = HeapReservation(forwarder.budget)
        self._reserved.resize(len(message))

    def start(self) -> None:
        """Send it to the node that is predicted to answer first."""
        self._forwarder.count += 1
        try:
            model, self._version = addressee(self.message)
            self._attempts = Attempts(
                self._forwarder.directory, model, len(self.message), self._late
            )
            self._try(self._attempts)
        except ServeError as error:
            self._fail(_end(error))

    def cancel(self) -> None:
        """No answer is wanted any more."""
        if self._call is not None:
            self._call.cancel()
            self._done()
        else:  # not sent yet, or ended
            self._reserved.release()

    def replied(self, message: memoryview, reserved: HeapReservation) -> None:
        self._done()
        self._caller.answered(self, message, reserved.release)
        if self._attempts is not None and self._attempts.links is not None:
            self._attempts.links.answered()

    def refused(self, end: CallEnd) -> None:
        assert self._attempts is not None
        if end.status not in _ELSEWHERE:
            self._fail(end)
            return
        if self._version or end.status != GrpcStatus.NOT_FOUND:
            self._refusal = end  # else it has just unloaded the model: "not found" is not so
        self._again("")

    def lost(self, why: str) -> None:
        assert self._attempts is not None
        self._again(self._attempts.lost(why, True))

    def waits(self) -> bool:
        assert self._attempts is not None
        return self._attempts.waits()

    def _try(self, attempts: Attempts) -> None:
        waited_ms = attempts.waited_ms
        left_ms = None if self._budget_ms is None else self._budget_ms - waited_ms
        links = attempts.next()
        self._call = links.grpc.call(MODEL_INFER, self.message, left_ms, waited_ms, self)

    def _again(self, why: str) -> None:
        """Try elsewhere; else answer with what the last node said, or with why there is nobody."""
        assert self._attempts is not None
        try:
            self._try(self._attempts)
        except ServeError as error:
            told = self._refusal if self._refusal is not None and not why else None
            self._fail(told or _end(joined(why, error)))

    def _late(self, error: ServeError) -> None:
        if self._call is not None:
            self._call.cancel()
        self._fail(_end(error))

    def _fail(self, end: CallEnd) -> None:
        self._done()
        self._caller.failed(self, end)

    def _done(self) -> None:
        self._call = None
        if self._attempts is not None:
            self._attempts.end()
        self._reserved.release()
        self._forwarder.count -= 1


def _end(error: ServeError) -> CallEnd:
    return CallEnd(STATUS[error.reason], error.detail, error.retry_after_ms)


class ModelInferCall:
    """ModelInfer: one request, one response."""

    __slots__ = ("_forwarder", "_passed", "_stream")
    streaming = False

    def __init__(self, stream: GrpcStream, forwarder: CallForwarder) -> None:
        self._stream = stream
        self._forwarder = forwarder
        self._passed: ForwardedCall | None = None

    def whole(self, message: memoryview) -> None:
        self._take(memoryview(bytes(message)))

    def _take(self, message: memoryview) -> None:
        """Take a message that nobody changes any more."""
        stream = self._stream
        if self._passed is not None:
            stream.fail(GrpcStatus.INVALID_ARGUMENT, "ModelInfer takes one message, got more")
            self.gone()
            return
        try:
            self._passed = ForwardedCall(self._forwarder, self, message, stream.head.budget_ms)
        except ServeError as error:
            stream.refuse(error)

    def sink(self, nbytes: int, compressed: bool) -> MessageSink:
        return self._forwarder.sink(self._stream, compressed, self._take, self._stream.refuse)

    def end(self) -> None:
        if self._passed is None:
            text = "ModelInfer takes one message, got none"
            self._stream.fail(GrpcStatus.INVALID_ARGUMENT, text)
            return
        self._passed.start()

    def gone(self) -> None:
        if self._passed is not None:
            self._passed.cancel()

    def answered(
        self, passed: ForwardedCall, message: memoryview, sent: Callable[[], None]
    ) -> None:
        self._stream.answer([message], len(message), sent)

    def failed(self, passed: ForwardedCall, end: CallEnd) -> None:
        self._stream.fail(end.status, end.text, end.retry_after_ms)


class ModelStreamInferCall:
    """ModelStreamInfer: each request goes to a node as a ModelInfer of its own."""

    __slots__ = ("_ended", "_forget", "_forwarder", "_passed", "_stream")
    streaming = True

    def __init__(
        self,
        stream: GrpcStream,
        forwarder: CallForwarder,
        forget: Callable[[ModelStreamInferCall], None],
    ) -> None:
        self._stream = stream
        self._forwarder = forwarder
        self._forget = forget
        self._passed: set[ForwardedCall] = set()
        self._ended = False

    def whole(self, message: memoryview) -> None:
        self._take(memoryview(bytes(message)))

    def _take(self, message: memoryview) -> None:
        """Take a message that nobody changes any more."""
        try:
            passed = ForwardedCall(self._forwarder, self, message, self._stream.head.budget_ms)
        except ServeError as error:
            self._refuse(error)
            return
        self._passed.add(passed)
        passed.start()

    def sink(self, nbytes: int, compressed: bool) -> MessageSink:
        return self._forwarder.sink(self._stream, compressed, self._take, self._refuse)

    def end(self) -> None:
        self._ended = True
        self._finish()

    def close(self) -> None:
        """The router is going: finish what is in flight, take nothing more."""
        self._ended = True
        if not self._passed:
            self._stream.fail(GrpcStatus.UNAVAILABLE, "the router is shutting down")
            self._forget(self)

    def gone(self) -> None:
        self._forget(self)
        passed, self._passed = self._passed, set()
        for each in passed:
            each.cancel()

    def answered(
        self, passed: ForwardedCall, message: memoryview, sent: Callable[[], None]
    ) -> None:
        self._passed.discard(passed)
        parts: list[Buffer] = [message, FINAL_RESPONSE]  # fields may come in any order
        whole = stream_response(parts, len(message) + len(FINAL_RESPONSE))
        self._stream.message(*whole, sent)
        self._finish()

    def failed(self, passed: ForwardedCall, end: CallEnd) -> None:
        self._passed.discard(passed)
        if self._stream.head.status_errors:
            self._stream.fail(end.status, end.text, end.retry_after_ms)
            self.gone()
            return
        message = stream_error(end.text, _id_of(passed.message))
        self._stream.message([message], len(message))
        self._finish()

    def _refuse(self, error: ServeError) -> None:
        self._stream.refuse(error)
        self.gone()

    def _finish(self) -> None:
        if self._ended and not self._passed:
            self._stream.finish(TRAILERS_OK)
            self._forget(self)


def _id_of(message: memoryview) -> str:
    try:
        return scan(message)[1]
    except ServeError:
        return ""
