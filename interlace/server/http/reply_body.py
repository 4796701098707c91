"""The body of an inference reply: JSON, then the outputs that go as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import bad_input
from interlace.core.model import Model
from interlace.core.tensor import BYTES, Tensor
from interlace.server.dataplane.classification import classified
from interlace.server.dataplane.plane import output_order
from interlace.server.http.decoded_request import (
    DecodedRequest,
    OutputTarget,
    RegionSpan,
    ReplyStart,
)
from interlace.server.http.responses import OCTETS, head_of
from interlace.server.shared_memory import Regions
from interlace.server.tensor_json import DTYPES, to_json

#: Outputs beyond this size are written as JSON in pieces.
TEXT_BYTES: Final = 64 * 1024
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
        and tensor.datatype in DTYPES
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
    order = output_order(decoded.outputs, outputs)
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

    def encode(self, outputs: Sequence[Tensor], views: Sequence[memoryview]) -> ReplyBody:
        """The body for these outputs, in the client's order.

        Raises:
            ServeError: an output does not fit its form or its shared-memory region.
        """
        targets = self._decoded.targets or [OutputTarget(t.name, None) for t in outputs]
        entries = [
            self._output(tensor, view, target)
            for tensor, view, target in zip(outputs, views, targets, strict=True)
        ]
        json = _document(self._model.key, self._decoded.id, entries)
        return ReplyBody(json, self._parts, bool(self._parts) or self._decoded.binary_default)

    def _output(self, tensor: Tensor, view: memoryview, target: OutputTarget) -> dict[str, object]:
        data: Bytes = view
        if target.classes:
            shape, data = classified(self._model, tensor, view, target.classes)
            tensor = Tensor(tensor.name, BYTES, shape, tensor.span)
        if target.region is not None:
            return self._stored(tensor, data, target.region)
        if self._decoded.binary(target):
            self._parts.append(data)
            return _entry(*tensor[:3], {"binary_data_size": len(data)})
        entry = _entry(*tensor[:3], None)
        text = self._texts.get(tensor.name)
        if text is None or target.classes:
            text = to_json(tensor.name, tensor.datatype, memoryview(data))
        entry["data"] = msgspec.Raw(text)
        return entry

    def _stored(self, tensor: Tensor, data: Bytes, region: RegionSpan) -> dict[str, object]:
        nbytes = len(data)
        if nbytes > region.nbytes:
            raise bad_input(
                f"shared memory size specified with the request for output '{tensor.name}' "
                f"({region.nbytes} bytes) should be at least {nbytes} bytes to hold the results"
            )
        self._regions.write(region.name, region.offset, data)
        # No parameters: perf_analyzer takes any on an output to include binary_data_size.
        return _entry(*tensor[:3], None)


def _document(model: str, id: str, outputs: list[dict[str, object]]) -> bytes:
    key = DeploymentKey.parse(model)
    head = {"model_name": key.name, "model_version": str(key.version)}
    if id:
        head["id"] = id
    return msgspec.json.encode({**head, "outputs": outputs})


def _entry(
    name: str, datatype: str, shape: tuple[int, ...], parameters: dict[str, object] | None
) -> dict[str, object]:
    entry: dict[str, object] = {"name": name, "datatype": datatype, "shape": shape}
    if parameters is not None:
        entry["parameters"] = parameters
    return entry
