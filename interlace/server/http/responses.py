"""Responses: status, headers, errors, and the body of an inference reply."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import Reason, ServeError
from interlace.core.model import Model
from interlace.core.tensor import BYTES, Tensor
from interlace.server.dataplane.call import DecodedRequest, ReplyStart, classified
from interlace.server.dataplane.plane import output_order
from interlace.server.dataplane.tensor_places import OutputTarget
from interlace.server.errors import HTTP_STATUS, PHRASES, HttpError
from interlace.server.shared_memory import Regions
from interlace.server.tensor_json import BINARY_ONLY, to_json

JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
METRICS_MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def head_of(status: int, media: str, length: int, headers: str = "") -> bytes:
    """Status line and headers of a response, up to the empty line."""
    return (
        f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: {media}\r\n{headers}"
        f"Content-Length: {length}\r\n\r\n"
    ).encode("latin-1")


EVENTS: Final = "text/event-stream; charset=utf-8"
#: The start of a response in chunks, and its end.
EVENTS_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n" % EVENTS.encode()
)
EVENTS_END: Final = b"0\r\n\r\n"


def event(json: bytes) -> bytes:
    """A server-sent event as one chunk."""
    return b"%x\r\ndata: %b\n\n\r\n" % (len(json) + 8, json)


def response(status: int, body: bytes, media: str = JSON, headers: str = "") -> bytes:
    """A whole response."""
    return head_of(status, media, len(body), headers) + body


#: Another node would answer the same.
FINAL: Final = "Interlace-Final: 1\r\n"


def error_response(error: ServeError | HttpError) -> bytes:
    """A refusal: the text, why, and where it is known when to come back."""
    if isinstance(error, HttpError):
        body = msgspec.json.encode({"error": error.detail})
        return response(error.status, body, headers=error.headers)
    content: dict[str, object] = {"error": error.detail, "reason": error.reason.value}
    headers = ""
    if error.retry_after_ms == math.inf:
        headers = FINAL
    elif error.retry_after_ms is not None:
        content["retry_after_ms"] = round(error.retry_after_ms, 3)
        headers = f"Retry-After: {max(1, math.ceil(error.retry_after_ms / 1000.0))}\r\n"
    if error.late_ms is not None:
        content["late_ms"] = round(error.late_ms, 3)
    if error.reason is Reason.UNAUTHORIZED:
        headers += "WWW-Authenticate: Bearer\r\n"
    return response(HTTP_STATUS[error.reason], msgspec.json.encode(content), headers=headers)


def with_connection(start: bytes, keep_alive: bool) -> bytes:
    """The same start of a response with a ``Connection`` header."""
    return with_header(start, b"Connection: keep-alive" if keep_alive else b"Connection: close")


def with_header(start: bytes, header: bytes) -> bytes:
    """The same start of a response with one more header, ``Name: value``."""
    line_end = start.index(b"\r\n") + 2
    return start[:line_end] + header + b"\r\n" + start[line_end:]


#: Outputs beyond this size are written as JSON in pieces.
TEXT_BYTES: Final = 64 * 1024
#: Datatypes that JSON has as text, or not at all.
_NO_NUMBERS: Final = frozenset({BYTES, *BINARY_ONLY})
Bytes = bytes | memoryview


class ReplyBody(NamedTuple):
    """A reply's JSON part and the bytes after it; ``binary`` if the response has their header."""

    json: bytes
    parts: list[Bytes]
    binary: bool


def large_texts(decoded: DecodedRequest, outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs that go as JSON numbers and are more than one turn of a loop should write."""
    targets = {target.name: target for target in decoded.targets}
    return [
        tensor
        for tensor in outputs
        if tensor.span.nbytes > TEXT_BYTES
        and tensor.datatype not in _NO_NUMBERS
        and decoded.as_json(targets.get(tensor.name, OutputTarget(tensor.name, None)))
    ]


def plain_start(decoded: DecodedRequest, key: str, outputs: Sequence[Tensor]) -> ReplyStart:
    """Response head and JSON part of a plain reply; ``key`` is the deployment's.

    Made once for all replies to the same request whose outputs have the same shapes.
    """
    shapes = tuple([(t.name, t.datatype, t.shape, t.span.nbytes) for t in outputs])
    start = decoded.start
    if start is not None and start.key == (key, shapes):
        return start
    order = output_order(decoded.targets, outputs)
    shown = [shapes[i] for i in order]
    entries = [_entry(*shape[:3], {"binary_data_size": shape[3]}) for shape in shown]
    json = _document(key, decoded.id, entries)
    nbytes = len(json) + sum(shape[3] for shape in shown)
    header = f"Inference-Header-Content-Length: {len(json)}\r\n"
    head = head_of(200, OCTETS, nbytes, header)
    decoded.start = start = ReplyStart((key, shapes), order, head + json, nbytes)
    return start


class ReplyEncoder:
    """Encodes the outputs of one reply, each in the form that the client asked for."""

    def __init__(
        self, decoded: DecodedRequest, model: Model, regions: Regions, texts: Mapping[str, bytes]
    ) -> None:
        """``texts`` are outputs that were written as JSON before, by name."""
        self._decoded = decoded
        self._model = model
        self._regions = regions
        self._texts = texts
        self._parts: list[Bytes] = []

    def encode(
        self, outputs: Sequence[Tensor], views: Sequence[memoryview], parameters: str
    ) -> ReplyBody:
        """The body for these outputs, in the client's order, and ``parameters`` of the model.

        Raises:
            ServeError: an output does not fit its form or its shared-memory region.
        """
        targets = self._decoded.targets or [OutputTarget(t.name, None) for t in outputs]
        entries = [
            self._output(tensor, view, target)
            for tensor, view, target in zip(outputs, views, targets, strict=True)
        ]
        json = _document(self._model.key, self._decoded.id, entries, parameters)
        return ReplyBody(json, self._parts, bool(self._parts) or self._decoded.binary_default)

    def _output(self, tensor: Tensor, view: memoryview, target: OutputTarget) -> dict[str, object]:
        data: Bytes = view
        if target.classes:
            shape, data = classified(self._model, tensor, view, target.classes)
            tensor = Tensor(tensor.name, BYTES, shape, tensor.span)
        if target.region is not None:
            self._regions.store(tensor.name, *target.region, data)
            # No parameters: perf_analyzer takes any on an output to include binary_data_size.
            return _entry(*tensor[:3], None)
        if self._decoded.binary(target):
            self._parts.append(data)
            return _entry(*tensor[:3], {"binary_data_size": len(data)})
        entry = _entry(*tensor[:3], None)
        text = self._texts.get(tensor.name)
        if text is None or target.classes:
            text = to_json(tensor.name, tensor.datatype, memoryview(data))
        entry["data"] = msgspec.Raw(text)
        return entry


def _document(model: str, id: str, outputs: list[dict[str, object]], parameters: str = "") -> bytes:
    key = DeploymentKey.parse(model)
    head: dict[str, object] = {"model_name": key.name, "model_version": str(key.version)}
    if id:
        head["id"] = id
    if parameters:
        head["parameters"] = msgspec.Raw(parameters.encode())
    return msgspec.json.encode({**head, "outputs": outputs})


def _entry(
    name: str, datatype: str, shape: tuple[int, ...], parameters: dict[str, object] | None
) -> dict[str, object]:
    entry: dict[str, object] = {"name": name, "datatype": datatype, "shape": shape}
    if parameters is not None:
        entry["parameters"] = parameters
    return entry
