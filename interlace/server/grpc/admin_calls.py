"""Administrative methods over gRPC: protobuf messages around the rows of one table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from interlace.core.errors import ServeError, bad_input
from interlace.proto.messages import HEALTH, SERVICE, request_class, response_class
from interlace.server.administration.methods import AdminAnswers, AdminMethod, AnswerTasks
from interlace.server.grpc.buffered_sink import BufferedSink
from interlace.server.grpc.headers import TRAILERS_OK
from interlace.server.grpc.stream import GrpcStream, MessageSink
from interlace.server.limits import HeapBudget


class RpcMethod:
    """A row of the table with its messages."""

    def __init__(self, method: AdminMethod[Any]) -> None:
        self.name = method.rpc.rpartition("/")[2]
        service = HEALTH if method.rpc.startswith(f"/{HEALTH.full_name}/") else SERVICE
        described = service.FindMethodByName(self.name)
        self.row = method
        self._request = request_class(described)
        self._response = response_class(described)

    def decode(self, message: memoryview) -> dict[str, Any]:
        """The fields of a request.

        Raises:
            ServeError: it is none.
        """
        try:
            fields: dict[str, Any] = _plain(self._request.FromString(bytes(message)))
        except DecodeError as error:
            raise bad_input(f"malformed {self.name}: {error}") from error
        return fields

    def encode(self, result: object) -> bytes:
        """The response message of a result."""
        field = self.row.field
        reply = {field: result} if field else result or {}
        if field == "regions" and isinstance(result, list):
            reply = {"regions": {region["name"]: region for region in result}}
        elif field == "settings" and isinstance(result, dict):
            shown = _strings if self.name == "TraceSetting" else _choice
            reply = {"settings": {name: shown(value) for name, value in result.items()}}
        message = ParseDict(reply, self._response(), ignore_unknown_fields=True)
        data: bytes = message.SerializeToString()
        return data


def _plain(message: Any) -> Any:
    """A message as a dict of plain values; a parameter or setting as the value it chose."""
    if any(each.name == "parameter_choice" for each in message.DESCRIPTOR.oneofs):
        kind = message.WhichOneof("parameter_choice")
        return None if kind is None else getattr(message, kind)
    if message.DESCRIPTOR.name == "SettingValue":  # of a trace setting: no value clears it
        values = list(message.value)
        return None if not values else values[0] if len(values) == 1 else values
    return {field.name: _plain_field(field, message) for field in message.DESCRIPTOR.fields}


def _plain_field(field: Any, message: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is None:
        return list(value) if field.is_repeated else value
    if field.message_type.GetOptions().map_entry:
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if field.is_repeated else _plain(value)


def _strings(value: object) -> dict[str, object]:
    return {"value": [str(each) for each in value] if isinstance(value, list) else [str(value)]}


def _choice(value: object) -> dict[str, object]:
    if isinstance(value, bool):
        return {"bool_param": value}
    return {"uint32_param" if isinstance(value, int) else "string_param": value}


class Administration:
    """What the administrative calls of all connections share."""

    def __init__(self, api: AdminAnswers, limit_bytes: int, budget: HeapBudget) -> None:
        """``limit_bytes`` bounds one request, ``budget`` all that are unfinished."""
        self.api = api
        self.limit_bytes = limit_bytes
        self.budget = budget
        self.tasks = AnswerTasks()


class AdminCall:
    """One request, one response; a load or unload takes its time."""

    __slots__ = ("_fields", "_method", "_shared", "_stream")
    streaming = False

    def __init__(self, stream: GrpcStream, method: RpcMethod, shared: Administration) -> None:
        self._stream = stream
        self._method = method
        self._shared = shared
        self._fields: dict[str, Any] | None = None

    def whole(self, message: memoryview) -> None:
        try:
            if self._fields is not None:
                raise bad_input(f"{self._method.name} takes one message, got more")
            self._fields = self._method.decode(message)
        except ServeError as error:
            self._refuse(error)

    def sink(self, nbytes: int, compressed: bool) -> MessageSink:
        shared, packed = self._shared, self._stream if compressed else None
        return BufferedSink(shared.limit_bytes, shared.budget, self.whole, self._refuse, packed)

    def end(self) -> None:
        if self._fields is None:
            self._refuse(bad_input(f"{self._method.name} takes one message, got none"))
        else:
            self._answer(self._fields)

    def gone(self) -> None:
        """What was asked is done all the same: a load goes on without its client."""

    def _answer(self, fields: dict[str, Any]) -> None:
        method, asked = self._method, partial(self._method.row.call, self._shared.api, fields)
        self._shared.tasks.run(method.name, asked, self._reply, self._refuse)

    def _reply(self, result: object) -> None:
        if self._stream.call is self:
            data = self._method.encode(result)
            self._stream.answer([data], len(data))

    def _refuse(self, error: ServeError) -> None:
        if self._stream.call is self:
            self._stream.refuse(error)


class HealthWatchCall(AdminCall):
    """A health watch: the state now, and again whenever it is another."""

    __slots__ = ("_forget", "_last")
    streaming = True

    def __init__(
        self,
        stream: GrpcStream,
        method: RpcMethod,
        shared: Administration,
        forget: Callable[[HealthWatchCall], None],
    ) -> None:
        super().__init__(stream, method, shared)
        self._forget = forget
        self._last: object = None

    def whole(self, message: memoryview) -> None:
        super().whole(message)
        self.look()

    def gone(self) -> None:
        self._forget(self)

    def close(self) -> None:
        """The server is going: end the watch."""
        if self._stream.call is self:
            self._stream.finish(TRAILERS_OK)

    def look(self) -> None:
        """Say how the server is, if that is something else than last time."""
        if self._fields is None or self._stream.call is not self:
            return
        result = self._method.row.call(self._shared.api, self._fields)
        if result != self._last:
            self._last = result
            data = self._method.encode(result)
            self._stream.message([data], len(data))

    def _answer(self, fields: dict[str, Any]) -> None:
        """Go on: a watch has no last answer."""

    def _refuse(self, error: ServeError) -> None:
        super()._refuse(error)
        self._forget(self)
