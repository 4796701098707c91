"""The handler of inference and generate requests over HTTP, and bodies too large for one turn."""

from __future__ import annotations

import asyncio
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.model import Model
from interlace.core.tensor import ITEM_BYTES, Span, element_count
from interlace.server.body_decoder import Coding
from interlace.server.compression import unpack_small
from interlace.server.dataplane.inference import InferenceContext
from interlace.server.http.bodies import ArenaBody, check_json
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.generation import Generation, GenerationStream
from interlace.server.http.inference import HttpContext, HttpInference
from interlace.server.http.request_head import RequestHead
from interlace.server.limits import MIB, HeapReservation, HttpLimits, RouteKind
from interlace.shm.blocks import ArenaBlocks

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
        kind: type[HttpInference] = HttpInference
        if head.route.kind is RouteKind.GENERATE:
            kind = GenerationStream if head.route.stream else Generation
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
        here_bytes, plain = self._limits.here_bytes, None
        if len(body) <= here_bytes:
            plain = unpack_small(body, head.encoding, here_bytes) if head.encoding else bytes(body)
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
        generates = head.route.kind is RouteKind.GENERATE
        decoded, blocks = await self.context.bodies.decode(
            Span(self.arena.number, placed.offset, json_bytes),
            Coding.WITH_HEADER if has_header else Coding.JSON,
            self.context.model(head.names).model.signature if generates else None,
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
