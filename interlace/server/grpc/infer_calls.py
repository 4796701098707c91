"""The gRPC methods ModelInfer and ModelStreamInfer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.server.grpc.buffered_sink import BufferedSink
from interlace.server.grpc.frame_writer import Buffer, OnSent
from interlace.server.grpc.headers import TRAILERS_OK
from interlace.server.grpc.infer_decoder import DecodedInfer, InferSink, UnreadInfer
from interlace.server.grpc.infer_wire import FINAL_RESPONSE, response, stream_error, stream_response
from interlace.server.grpc.pending_calls import PendingCall, PendingCalls
from interlace.server.grpc.rpc import MessageSink
from interlace.server.grpc.status import GrpcStatus
from interlace.server.grpc.stream import GrpcStream

#: What one stream may have in flight before its next request is refused.
_STREAM_IN_FLIGHT: Final = 4096


class LocalInference:
    """Inference by this server's own data plane."""

    def __init__(self, calls: PendingCalls) -> None:
        self._calls = calls

    @property
    def count(self) -> int:
        """Calls without an answer."""
        return self._calls.count

    def unary(self, stream: GrpcStream) -> ModelInferCall:
        """A ModelInfer call."""
        return ModelInferCall(stream, self._calls)

    def streaming(
        self, stream: GrpcStream, forget: Callable[[ModelStreamInferCall], None]
    ) -> ModelStreamInferCall:
        """A ModelStreamInfer call; ``forget`` is called once, when it has ended."""
        return ModelStreamInferCall(stream, self._calls, forget)


class _ReceivedCall:
    """A call whose messages are decoded into requests."""

    __slots__ = ("_calls", "_stream")

    def __init__(self, stream: GrpcStream, calls: PendingCalls) -> None:
        self._stream = stream
        self._calls = calls

    def whole(self, message: memoryview) -> None:
        try:
            decoded = self._calls.decoder.whole(message)
        except ServeError as error:
            self._received(error)
            return
        self._taken(decoded)

    def sink(self, nbytes: int, compressed: bool) -> MessageSink:
        """Where a request that comes in pieces, or compressed, is put."""
        decoder = self._calls.decoder
        if not compressed:
            return InferSink(decoder, nbytes, self._taken)
        limit_bytes = decoder.limits.max_unpacked_bytes
        return BufferedSink(limit_bytes, decoder.heap, self.whole, self._received, self._stream)

    def _taken(self, found: DecodedInfer | UnreadInfer | ServeError) -> None:
        """A message came whole; one of a long head is read first, and its stream waits for it."""
        if not isinstance(found, UnreadInfer):
            self._received(found)
            return
        stream = self._stream
        stream.hold()
        task = asyncio.get_running_loop().create_task(self._read(found))
        stream.unpacking.add(task)
        task.add_done_callback(stream.unpacking.discard)

    async def _read(self, unread: UnreadInfer) -> None:
        stream, found = self._stream, await self._calls.decoder.read(unread)
        if stream.call is not None:
            self._received(found)
            stream.go_on()
        elif not isinstance(found, ServeError):
            found.blocks.free()

    def _received(self, decoded: DecodedInfer | ServeError) -> None:
        raise NotImplementedError


class ModelInferCall(_ReceivedCall):
    """One request, one response."""

    __slots__ = ("_decoded", "_pending")
    streaming = False

    def __init__(self, stream: GrpcStream, calls: PendingCalls) -> None:
        super().__init__(stream, calls)
        self._decoded: DecodedInfer | None = None
        self._pending: PendingCall | None = None

    def end(self) -> None:
        decoded, self._decoded = self._decoded, None
        if decoded is None:
            text = "ModelInfer takes one message, got none"
            self._stream.fail(GrpcStatus.INVALID_ARGUMENT, text)
            return
        self._pending = self._calls.submit(self, decoded, self._stream.head)

    def gone(self) -> None:
        self._drop()
        if self._pending is not None:
            self._pending.cancel()

    def answered(
        self, pending: PendingCall, head: bytes, outputs: Sequence[Buffer], sent: OnSent
    ) -> None:
        self._stream.answer(*response(head, pending.decoded.id, outputs), sent)

    def refused(self, pending: PendingCall, error: ServeError) -> None:
        self._stream.refuse(error)

    def _received(self, decoded: DecodedInfer | ServeError) -> None:
        if isinstance(decoded, ServeError):
            self._drop()
            self._stream.refuse(decoded)
        elif self._decoded is not None:
            self._drop()
            decoded.blocks.free()
            text = "ModelInfer takes one message, got more"
            self._stream.fail(GrpcStatus.INVALID_ARGUMENT, text)
        else:
            self._decoded = decoded

    def _drop(self) -> None:
        decoded, self._decoded = self._decoded, None
        if decoded is not None:
            decoded.blocks.free()


class ModelStreamInferCall(_ReceivedCall):
    """Requests as they come, responses as they are ready; a refusal is a response too, unless the
    client asked for gRPC's own way (metadata ``triton_grpc_error: true``)."""

    __slots__ = ("_ended", "_forget", "_pending")
    streaming = True

    def __init__(
        self,
        stream: GrpcStream,
        calls: PendingCalls,
        forget: Callable[[ModelStreamInferCall], None],
    ) -> None:
        """``forget`` is called once, when the stream has ended."""
        super().__init__(stream, calls)
        self._forget = forget
        self._pending: set[PendingCall] = set()
        self._ended = False

    def end(self) -> None:
        self._ended = True
        self._finish()

    def close(self) -> None:
        """The server is going: finish what is in flight, take nothing more."""
        self._ended = True
        if not self._pending:
            self._stream.fail(GrpcStatus.UNAVAILABLE, "the server is shutting down")
            self._forget(self)

    def gone(self) -> None:
        self._forget(self)
        pending, self._pending = self._pending, set()
        for each in pending:
            each.cancel()

    def answered(
        self, pending: PendingCall, head: bytes, outputs: Sequence[Buffer], sent: OnSent
    ) -> None:
        self._pending.discard(pending)
        parts, nbytes = response(head + FINAL_RESPONSE, pending.decoded.id, outputs)
        self._stream.message(*stream_response(parts, nbytes), sent)
        self._finish()

    def refused(self, pending: PendingCall, error: ServeError) -> None:
        self._pending.discard(pending)
        self._refuse(error, pending.decoded.id)

    def _received(self, decoded: DecodedInfer | ServeError) -> None:
        if isinstance(decoded, ServeError):
            self._refuse(decoded, "")
            return
        if len(self._pending) >= _STREAM_IN_FLIGHT:
            decoded.blocks.free()
            text = f"{len(self._pending)} requests of this stream are in flight"
            self._refuse(ServeError(Reason.OVERLOADED, text, retry_after_ms=100.0), decoded.id)
            return
        pending = self._calls.submit(self, decoded, self._stream.head)
        if pending.owner is not None:  # not answered yet
            self._pending.add(pending)

    def _refuse(self, error: ServeError, call_id: str) -> None:
        if self._stream.head.status_errors:
            self._stream.refuse(error)
            self.gone()
            return
        message = stream_error(error.detail, call_id)
        self._stream.message([message], len(message))
        self._finish()

    def _finish(self) -> None:
        if self._ended and not self._pending:
            self._stream.finish(TRAILERS_OK)
            self._forget(self)
