"""ModelInfer and ModelStreamInfer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.server.grpc.buffered_sink import BufferedSink
from interlace.server.grpc.frame_writer import OnSent
from interlace.server.grpc.headers import TRAILERS_OK
from interlace.server.grpc.infer_decoder import DecodedInfer, InferDecoder, InferSink
from interlace.server.grpc.infer_wire import FINAL_RESPONSE, response, stream_error, stream_response
from interlace.server.grpc.pending_calls import InferResult, PendingCall, PendingCalls
from interlace.server.grpc.rpc import MessageSink
from interlace.server.grpc.status import STATUS, GrpcStatus
from interlace.server.grpc.stream import GrpcStream

#: What one stream may have in flight before its next request is refused.
_STREAM_IN_FLIGHT: Final = 4096


def refuse(stream: GrpcStream, error: ServeError) -> None:
    """End a call with a reason."""
    stream.fail(STATUS[error.reason], error.detail, error.retry_after_ms)


class ModelInferCall:
    """One request, one response."""

    __slots__ = ("_decoder", "_flight", "_pending", "_stream", "_taken")
    streaming = False

    def __init__(self, stream: GrpcStream, desk: PendingCalls, intake: InferDecoder) -> None:
        self._stream = stream
        self._pending = desk
        self._decoder = intake
        self._taken: DecodedInfer | None = None
        self._flight: PendingCall | None = None

    def whole(self, message: memoryview) -> None:
        try:
            taken = self._decoder.whole(message)
        except ServeError as error:
            self._took(error)
            return
        self._took(taken)

    def sink(self, nbytes: int, compressed: bool) -> MessageSink:
        if compressed:
            return BufferedSink(self._decoder, self.whole, self._took, self._stream.head.encoding)
        return InferSink(self._decoder, nbytes, self._took)

    def end(self) -> None:
        taken, self._taken = self._taken, None
        if taken is None:
            self._stream.fail(GrpcStatus.INVALID_ARGUMENT, "ModelInfer takes one message, got none")
            return
        try:
            self._flight = self._pending.submit(self, taken, self._stream.head.budget_ms)
        except ServeError as error:
            refuse(self._stream, error)

    def gone(self) -> None:
        self._drop()
        if self._flight is not None:
            self._pending.cancel(self._flight)

    def answered(self, flight: PendingCall, result: InferResult, sent: OnSent) -> None:
        self._stream.answer(*response(result.head, flight.taken.id, result.views), sent)

    def refused(self, flight: PendingCall, error: ServeError) -> None:
        refuse(self._stream, error)

    def _took(self, taken: DecodedInfer | ServeError) -> None:
        if isinstance(taken, ServeError):
            self._drop()
            refuse(self._stream, taken)
        elif self._taken is not None:
            self._drop()
            self._decoder.free(taken.slots)
            self._stream.fail(GrpcStatus.INVALID_ARGUMENT, "ModelInfer takes one message, got more")
        else:
            self._taken = taken

    def _drop(self) -> None:
        taken, self._taken = self._taken, None
        if taken is not None:
            self._decoder.free(taken.slots)


class ModelStreamInferCall:
    """Requests as they come, responses as they are ready; a refusal is a response too, unless the
    client asked for gRPC's own way (metadata ``triton_grpc_error: true``)."""

    __slots__ = (
        "_decoder",
        "_ended",
        "_flights",
        "_forget",
        "_pending",
        "_status_errors",
        "_stream",
    )
    streaming = True

    def __init__(
        self,
        stream: GrpcStream,
        desk: PendingCalls,
        intake: InferDecoder,
        forget: Callable[[ModelStreamInferCall], None],
    ) -> None:
        """``forget`` is called once, when the stream has ended."""
        self._stream = stream
        self._pending = desk
        self._decoder = intake
        self._forget = forget
        self._flights: dict[int, PendingCall] = {}
        self._ended = False
        self._status_errors = stream.head.metadata.get("triton_grpc_error", "").lower() == "true"

    def whole(self, message: memoryview) -> None:
        try:
            taken = self._decoder.whole(message)
        except ServeError as error:
            self._took(error)
            return
        self._took(taken)

    def sink(self, nbytes: int, compressed: bool) -> MessageSink:
        if compressed:
            return BufferedSink(self._decoder, self.whole, self._took, self._stream.head.encoding)
        return InferSink(self._decoder, nbytes, self._took)

    def end(self) -> None:
        self._ended = True
        self._finish()

    def close(self) -> None:
        """The server is going: finish what is in flight, take nothing more."""
        self._ended = True
        if not self._flights:
            self._stream.fail(GrpcStatus.UNAVAILABLE, "the server is shutting down")
            self._forget(self)

    def gone(self) -> None:
        self._forget(self)
        flights, self._flights = self._flights, {}
        for flight in flights.values():
            self._pending.cancel(flight)

    def answered(self, flight: PendingCall, result: InferResult, sent: OnSent) -> None:
        self._flights.pop(flight.number, None)
        head = result.head + FINAL_RESPONSE
        parts = stream_response(*response(head, flight.taken.id, result.views))
        self._stream.message(*parts, sent)
        self._finish()

    def refused(self, flight: PendingCall, error: ServeError) -> None:
        self._flights.pop(flight.number, None)
        self._refuse(error, flight.taken.id)

    def _took(self, taken: DecodedInfer | ServeError) -> None:
        if isinstance(taken, ServeError):
            self._refuse(taken, "")
            return
        try:
            if len(self._flights) >= _STREAM_IN_FLIGHT:
                self._decoder.free(taken.slots)
                raise ServeError(
                    Reason.OVERLOADED,
                    f"{len(self._flights)} requests of this stream are in flight",
                    retry_after_ms=100.0,
                )
            flight = self._pending.submit(self, taken, self._stream.head.budget_ms)
        except ServeError as error:
            self._refuse(error, taken.id)
            return
        self._flights[flight.number] = flight

    def _refuse(self, error: ServeError, call_id: str) -> None:
        if self._status_errors:
            refuse(self._stream, error)
            self.gone()
            return
        message = stream_error(error.detail, call_id)
        self._stream.message([message], len(message))
        self._finish()

    def _finish(self) -> None:
        if self._ended and not self._flights:
            self._stream.finish(TRAILERS_OK)
            self._forget(self)
