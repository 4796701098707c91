"""Bodies too large for one turn of the loop: copied in pieces, decoded in another process."""

from __future__ import annotations

import asyncio
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.model import Model
from interlace.core.tensor import ITEM_BYTES, element_count
from interlace.server.heap_budget import HeapReservation
from interlace.server.http.bodies import ArenaBody
from interlace.server.http.inference import Inference
from interlace.server.http.inference_context import InferenceContext
from interlace.server.http.input_tensors import check_json
from interlace.server.http.request_head import RequestHead

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


class LargeBodies:
    """Begins inferences whose bodies need more than one turn of the loop."""

    def __init__(self, context: InferenceContext) -> None:
        self._context = context
        self._limits = context.limits
        self._decoder = context.bodies

    def begin(self, inference: Inference, head: RequestHead, body: ArenaBody | bytearray) -> None:
        """Begin one inference; an ``ArenaBody`` lies in its blocks already."""
        inference.later(self._prepare(inference, head, body))

    def check_length(self, head: RequestHead) -> None:
        """Refuse at its head a body that no request of the model needs.

        Raises:
            ServeError: it is too large, or there is no such model.
        """
        if head.encoding:
            return
        limit = self._limit_bytes(head)
        if head.length > limit:
            raise _too_large(f"the request body of {head.length} bytes exceeds", limit)

    def close(self) -> None:
        """End the decoder; what is not decoded yet is refused."""
        self._decoder.close()

    def _limit_bytes(self, head: RequestHead) -> int:
        """The largest body of a request, unpacked.

        Raises:
            ServeError: there is no such model.
        """
        model, limits = self._context.model(head.names).model, self._limits
        in_json = head.json_length < 0
        most = limits.json_bytes if in_json else limits.body_bytes
        tensors = largest_bytes(model, in_json)
        if tensors is None:
            return most
        # A batch that is somewhat too large gets a better error from the model's own check.
        return min(most, max(_PIECE_BYTES, max(head.json_length, 0) + 2 * tensors))

    async def _prepare(
        self, inference: Inference, head: RequestHead, body: ArenaBody | bytearray
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
        decoded, blocks = await self._decoder.decode(placed, json_bytes, has_header)
        inference.blocks.take_over(blocks)
        inference.check_wanted()
        inference.call(decoded, placed if has_header else None)

    async def _copied(self, inference: Inference, head: RequestHead, body: bytearray) -> ArenaBody:
        in_front = head.json_length >= 0 and not head.encoding
        json_length = head.json_length if in_front else len(body)
        copy = ArenaBody(self._context.arena, len(body), json_length)
        inference.blocks.take_over(copy.hand_over())
        source = memoryview(body)
        for at in range(0, len(body), _PIECE_BYTES):
            copy.view[at : at + _PIECE_BYTES] = source[at : at + _PIECE_BYTES]
            await asyncio.sleep(0)
        return copy

    async def _unpacked(
        self, inference: Inference, head: RequestHead, packed: ArenaBody
    ) -> ArenaBody:
        """The body as it was before its encoding, in place of the packed one."""
        limit = min(self._limit_bytes(head), self._limits.heap_bytes // 2)
        room = max(self._limits.here_bytes, packed.length)
        reserved = inference.reserved = HeapReservation(self._context.budget)
        while True:
            room = min(limit, room * _GROWTH)
            inference.check_wanted()
            reserved.resize(room)
            plain = ArenaBody(
                self._context.arena, room, head.json_length if head.json_length >= 0 else room
            )
            try:
                fits = await self._decoder.unpack(packed, head.encoding, plain)
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
