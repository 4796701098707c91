"""The handler of inference and generate requests over HTTP, and bodies too large for one turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import Reason, ServeError, bad_input
from interlace.core.model import Model
from interlace.core.request import Reply
from interlace.core.tensor import ITEM_BYTES, Span, TensorSpec, element_count
from interlace.server.body_decoder import Coding
from interlace.server.compression import unpack_small, unpack_within
from interlace.server.dataplane.call import DecodedRequest
from interlace.server.dataplane.inference import InferenceContext
from interlace.server.dataplane.tensor_places import InputSource, Parameter
from interlace.server.http.bodies import ArenaBody, check_json
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.inference import HttpContext, HttpInference
from interlace.server.http.request_head import RequestHead
from interlace.server.http.responses import ReplyBody
from interlace.server.limits import MIB, HeapReservation, HttpLimits, RouteKind
from interlace.server.tensor_json import DEPTH_MAX, MALFORMED, decoded, to_bytes, to_json
from interlace.shm.blocks import ArenaBlocks

EVENTS: Final = "text/event-stream; charset=utf-8"
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_parameters: Final = msgspec.json.Decoder(dict[str, Parameter])
_parameter: Final = msgspec.json.Decoder(Parameter)
_text: Final = msgspec.json.Decoder(str)


class Generation(HttpInference):
    """One inference whose body names inputs and parameters side by side."""

    def start(self, body: ArenaBody | bytes) -> None:
        assert isinstance(body, bytes), "bodies of generate are small"
        self.call(decode_generate(self._model().model, body), None)

    def encode(self, reply: Reply, texts: Mapping[str, bytes]) -> ReplyBody:
        key = DeploymentKey.parse(reply.request.model)
        values: dict[str, object] = {"model_name": key.name, "model_version": str(key.version)}
        if self._decoded.id:
            values["id"] = self._decoded.id
        for tensor in reply.outputs:
            text = texts.get(tensor.name) or to_json(
                tensor.name, tensor.datatype, self._context.view(tensor.span)
            )
            one = element_count(tensor.shape) == 1
            values[tensor.name] = msgspec.Raw(text[1:-1] if one else text)
        json = msgspec.json.encode(values)
        return ReplyBody(b"data: " + json + b"\n\n" if self._head.route.stream else json, [], False)

    def media(self, binary: bool) -> str:
        return EVENTS if self._head.route.stream else super().media(binary)


def decode_generate(model: Model, body: bytes) -> DecodedRequest:
    """Inputs, id and parameters of a generate request.

    A value is one element or nested arrays; the batch dimension is added in front. What names no
    input is a parameter.

    Raises:
        ServeError: BAD_INPUT, naming the field.
    """
    try:
        fields = decoded(_fields, body)
        id = _text.decode(fields.pop("id", b'""'))
        parameters = _parameters.decode(fields.pop("parameters", b"{}"))
    except MALFORMED as error:
        raise bad_input(f"failed to parse the request JSON: {error}") from error
    batched = model.signature.batched
    sources = tuple(
        _source(spec, bytes(fields.pop(spec.name)), batched)
        for spec in model.signature.inputs
        if spec.name in fields
    )
    return DecodedRequest(id, sources, (), {**_others(fields), **parameters})


def _source(spec: TensorSpec, value: bytes, batched: bool) -> InputSource:
    if value.startswith(b"["):
        shape = _shape(spec.name, value)
    else:
        value = b"[" + value + b"]"
        shape = (1,) * len(spec.dims)
    if batched and len(shape) == len(spec.dims):
        shape = (1, *shape)
    data = to_bytes(spec.name, spec.datatype, shape, value)
    return InputSource(spec.name, spec.datatype, shape, 0, len(data), data)


def _shape(name: str, value: bytes) -> tuple[int, ...]:
    try:
        nested = msgspec.json.decode(value)
    except MALFORMED as error:
        raise bad_input(f"'{name}': {error}") from error
    shape: list[int] = []
    while isinstance(nested, list):
        shape.append(len(nested))
        if not nested or len(shape) > DEPTH_MAX:
            break
        nested = nested[0]
    return tuple(shape)


def _others(fields: Mapping[str, msgspec.Raw]) -> dict[str, Parameter]:
    parameters = {}
    for name, value in fields.items():
        try:
            parameters[name] = _parameter.decode(value)
        except MALFORMED as error:
            raise bad_input(
                f"'{name[:128]}' is no input of the model, and as a parameter it must be a string, "
                f"number or boolean: {error}"
            ) from error
    return parameters


#: A number in JSON with what stands around it, indented too.
_JSON_ITEM_BYTES: Final = 64


def largest_bytes(model: Model, json: bool) -> int | None:
    """The bytes of the largest request's tensors, as binary data or as JSON text.

    ``None`` where the signature sets no bound: a dim of any size, or elements of any length.
    """
    rows = model.signature.max_batch if model.signature.batched else 1
    total = 0
    for spec in model.signature.inputs:
        size = ITEM_BYTES.get(spec.datatype)
        if size is None or min(spec.dims, default=1) < 0:
            return None
        total += rows * element_count(spec.dims) * (_JSON_ITEM_BYTES if json else size)
    return total


_PIECE_BYTES: Final = 1 << 20
#: Room for a packed body is this many times its size at first, and as many times that if need be.
_GROWTH: Final = 4


class InferenceHandler:
    """Places bodies in the arena, and begins inferences: small ones at once, large ones apart."""

    def __init__(self, shared: InferenceContext, limits: HttpLimits) -> None:
        context = self.context = HttpContext(shared, limits)
        self._limits = limits
        self.whole_bytes = 0  # tensors are read where they were placed
        self.budget = context.budget
        self.arena = context.arena

    def place(self, head: RequestHead, data: bytearray, start: int, end: int) -> ArenaBody:
        if head.json_length < 0 or head.length > MIB:
            self._check_length(head)
        plane, stop = self.context.plane, start + head.json_length
        # Nothing is known of a JSON part that is not all here yet, or compressed.
        if start < stop <= end and not head.encoding and plane.refusing:
            json = bytes(memoryview(data)[start:stop])
            seen = self.context.decoded_before(head.names, json)
            refusal = None if seen is None else plane.known_refusal(seen)
            if refusal is not None:
                raise refusal
        in_front = head.json_length >= 0 and not head.encoding
        json_length = head.json_length if in_front else head.length
        return ArenaBody(self.context.arena, head.length, json_length, end - start)

    def begin(
        self, writer: ResponseWriter, head: RequestHead, body: ArenaBody | bytearray
    ) -> HttpInference:
        context, small = self.context, self._limits.here_bytes
        kind = Generation if head.route.kind is RouteKind.GENERATE else HttpInference
        blocks = body.hand_over() if isinstance(body, ArenaBody) else ArenaBlocks(context.arena)
        inference = kind(context, writer, head, blocks)
        try:
            if isinstance(body, bytearray):
                self._begin_from_heap(inference, head, body)
            elif not head.encoding and 0 <= head.json_length <= small:
                inference.start(body)
            else:
                inference.later(self._prepare(inference, head, body))
        except Exception as error:
            inference.refuse(context.errors.refusal(error, "an inference"))
        return inference

    def close(self) -> None:
        self.context.bodies.close()

    def _begin_from_heap(
        self, inference: HttpInference, head: RequestHead, body: bytearray
    ) -> None:
        generates = head.route.kind is RouteKind.GENERATE
        here_bytes = self._limits.generate_bytes if generates else self._limits.here_bytes
        if len(body) > here_bytes:
            inference.later(self._prepare(inference, head, body))
            return
        if not head.encoding:
            plain: bytes | None = bytes(body)
        elif generates:
            plain = unpack_within(body, head.encoding, here_bytes)
        else:
            plain = unpack_small(body, head.encoding, here_bytes)
        if plain is None:
            inference.later(self._prepare(inference, head, body))
        else:
            inference.start(plain)

    def _check_length(self, head: RequestHead) -> None:
        """Refuse at its head a body that no request of the model needs.

        Raises:
            ServeError: it is too large, or there is no such model.
        """
        if head.encoding:
            return
        limit = self._limit_bytes(head)
        if head.length > limit:
            raise _too_large(f"the request body of {head.length} bytes exceeds", limit)

    def _limit_bytes(self, head: RequestHead) -> int:
        """The largest body of a request, unpacked.

        Raises:
            ServeError: there is no such model.
        """
        model, limits = self.context.model(head.names).model, self._limits
        in_json = head.json_length < 0
        most = limits.json_bytes if in_json else limits.body_bytes
        tensors = largest_bytes(model, in_json)
        if tensors is None:
            return most
        # A batch that is somewhat too large gets a better error from the model's own check.
        return min(most, max(_PIECE_BYTES, max(head.json_length, 0) + 2 * tensors))

    async def _prepare(
        self, inference: HttpInference, head: RequestHead, body: ArenaBody | bytearray
    ) -> None:
        placed = body if isinstance(body, ArenaBody) else await self._copied(inference, head, body)
        if head.encoding:
            placed = await self._unpacked(inference, head, placed)
        has_header = head.json_length >= 0
        json_bytes = head.json_length if has_header else placed.length
        if json_bytes <= self._limits.here_bytes:
            inference.check_wanted()
            inference.start(placed if has_header else placed.view.tobytes())
            return
        check_json(json_bytes, placed.length)
        decoded, blocks = await self.context.bodies.decode(
            Span(self.arena.number, placed.offset, json_bytes),
            Coding.WITH_HEADER if has_header else Coding.JSON,
        )
        inference.blocks.take_over(blocks)
        inference.check_wanted()
        inference.call(decoded, placed if has_header else None)

    async def _copied(
        self, inference: HttpInference, head: RequestHead, body: bytearray
    ) -> ArenaBody:
        in_front = head.json_length >= 0 and not head.encoding
        json_length = head.json_length if in_front else len(body)
        copy = ArenaBody(self.context.arena, len(body), json_length)
        inference.blocks.take_over(copy.hand_over())
        source = memoryview(body)
        for at in range(0, len(body), _PIECE_BYTES):
            copy.view[at : at + _PIECE_BYTES] = source[at : at + _PIECE_BYTES]
            await asyncio.sleep(0)
        return copy

    async def _unpacked(
        self, inference: HttpInference, head: RequestHead, packed: ArenaBody
    ) -> ArenaBody:
        """The body as it was before its encoding, in place of the packed one."""
        limit = min(self._limit_bytes(head), self._limits.heap_bytes // 2)
        room = max(self._limits.here_bytes, packed.length)
        reserved = inference.reserved = HeapReservation(self.context.budget)
        while True:
            room = min(limit, room * _GROWTH)
            inference.check_wanted()
            reserved.resize(room)
            plain = ArenaBody(
                self.context.arena, room, head.json_length if head.json_length >= 0 else room
            )
            try:
                fits = await self.context.bodies.unpack(packed, head.encoding, plain)
            except BaseException:
                plain.drop()
                raise
            if fits:
                inference.blocks.free()
                inference.blocks.take_over(plain.hand_over())
                return plain
            plain.drop()
            if room == limit:
                raise _too_large("the body unpacks to more than", limit)


def _too_large(what: str, limit: int) -> ServeError:
    return ServeError(
        Reason.TOO_LARGE, f"{what} {limit} bytes, the most that a request of this model may hold"
    )
