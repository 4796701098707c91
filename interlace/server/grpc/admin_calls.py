"""Every method but inference: asked of the main process, answered when it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError

from interlace.core.errors import ServeError
from interlace.proto.messages import HEALTH, SERVICE, request_class, response_class
from interlace.server.grpc.buffered_sink import BufferedSink, SinkLimits
from interlace.server.grpc.headers import TRAILERS_OK
from interlace.server.grpc.pending_calls import PendingCalls
from interlace.server.grpc.rpc import MessageSink
from interlace.server.grpc.status import STATUS, GrpcStatus
from interlace.server.grpc.stream import GrpcStream

#: Methods that are asked: path to descriptor.
METHODS: Final[dict[str, Any]] = {
    f"/{service.full_name}/{method.name}": method
    for service in (SERVICE, HEALTH)
    for method in service.methods
    if not method.name.endswith("Infer") and method.name != "Watch"
}
WATCH: Final = f"/{HEALTH.full_name}/Watch"
_WATCH_METHOD: Final = next(method for method in HEALTH.methods if method.name == "Watch")


def plain(message: Any) -> Any:
    """A message as a dict of plain values; a parameter or setting as the value it chose."""
    if any(each.name == "parameter_choice" for each in message.DESCRIPTOR.oneofs):
        kind = message.WhichOneof("parameter_choice")
        return None if kind is None else getattr(message, kind)
    return {field.name: _plain_field(field, message) for field in message.DESCRIPTOR.fields}


def _plain_field(field: Any, message: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    if field.message_type.GetOptions().map_entry:
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if field.is_repeated else plain(value)


class AdminCall:
    """One request to the main process, one answer from it."""

    __slots__ = ("_body", "_bounds", "_method", "_pending", "_stream")
    streaming = False

    def __init__(
        self, stream: GrpcStream, method: Any, desk: PendingCalls, bounds: SinkLimits
    ) -> None:
        self._stream = stream
        self._method = method
        self._pending = desk
        self._bounds = bounds
        self._body: dict[str, object] | None = None

    def whole(self, message: memoryview) -> None:
        try:
            request = request_class(self._method).FromString(bytes(message))
        except DecodeError as error:
            self._stream.fail(
                GrpcStatus.INVALID_ARGUMENT, f"malformed {self._method.name}: {error}"
            )
            return
        if self._body is not None:
            text = f"{self._method.name} takes one message, got more"
            self._stream.fail(GrpcStatus.INVALID_ARGUMENT, text)
            return
        self._body = plain(request)

    def sink(self, nbytes: int, compressed: bool) -> MessageSink:
        encoding = self._stream.head.encoding if compressed else ""
        return BufferedSink(self._bounds, self.whole, self.refused, encoding)

    def end(self) -> None:
        if self._body is None:
            text = f"{self._method.name} takes one message, got none"
            self._stream.fail(GrpcStatus.INVALID_ARGUMENT, text)
            return
        self._pending.ask(self._method.full_name, self._body, self.told, self.refused)

    def gone(self) -> None:
        """What was asked is done all the same: a load goes on without its client."""

    def told(self, result: object) -> None:
        """The main process answered."""
        if self._stream.call is not self:
            return
        try:
            message = ParseDict(result, response_class(self._method)(), ignore_unknown_fields=True)
        except ParseError as error:
            self._stream.fail(GrpcStatus.INTERNAL, f"{self._method.name}: {error}")
            return
        data = message.SerializeToString()
        self._stream.answer([data], len(data))

    def refused(self, error: ServeError) -> None:
        """The main process refused, or the message was too much."""
        if self._stream.call is self:
            self._stream.fail(STATUS[error.reason], error.detail, error.retry_after_ms)


class HealthWatchCall:
    """A health watch: the state now, and again whenever it is another."""

    __slots__ = ("_bounds", "_forget", "_last", "_pending", "_service", "_stream")
    streaming = True

    def __init__(
        self,
        stream: GrpcStream,
        desk: PendingCalls,
        bounds: SinkLimits,
        forget: Callable[[HealthWatchCall], None],
    ) -> None:
        self._stream = stream
        self._pending = desk
        self._bounds = bounds
        self._forget = forget
        self._service: str | None = None
        self._last: object = None

    def whole(self, message: memoryview) -> None:
        try:
            request = request_class(_WATCH_METHOD).FromString(bytes(message))
        except DecodeError as error:
            self._stream.fail(GrpcStatus.INVALID_ARGUMENT, f"malformed health request: {error}")
            return
        self._service = request.service
        self.look()

    def sink(self, nbytes: int, compressed: bool) -> MessageSink:
        encoding = self._stream.head.encoding if compressed else ""
        return BufferedSink(self._bounds, self.whole, self._refused, encoding)

    def end(self) -> None:
        if self._service is None:
            self._stream.fail(GrpcStatus.INVALID_ARGUMENT, "Watch takes one message, got none")

    def gone(self) -> None:
        self._forget(self)

    def close(self) -> None:
        """The server is going: end the watch."""
        if self._stream.call is self:
            self._stream.finish(TRAILERS_OK)

    def look(self) -> None:
        """Ask for the state."""
        if self._service is not None and self._stream.call is self:
            asked: dict[str, object] = {"service": self._service}
            self._pending.ask(_WATCH_METHOD.full_name, asked, self._told, self._refused)

    def _told(self, result: object) -> None:
        if result == self._last or self._stream.call is not self:
            return
        self._last = result
        message = ParseDict(result, response_class(_WATCH_METHOD)())
        data = message.SerializeToString()
        self._stream.message([data], len(data))

    def _refused(self, error: ServeError) -> None:
        if self._stream.call is self:
            self._stream.fail(STATUS[error.reason], error.detail)
        self._forget(self)
