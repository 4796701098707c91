"""Bodies too large for one turn of the loop: copied in pieces, unpacked and decoded beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.request import Reply
from interlace.core.tensor import Span, Tensor
from interlace.server.http.arena_body import ArenaBody
from interlace.server.http.body_decoder.client import BodyDecoder
from interlace.server.http.inference import Inference
from interlace.server.http.input_tensors import check_json
from interlace.server.http.largest_request import largest_bytes
from interlace.server.http.limits import HttpLimits
from interlace.server.http.reply_body import TEXT_BYTES
from interlace.server.http.request_head import RequestHead
from interlace.server.internal_errors import InternalErrors
from interlace.server.model_table import ModelTable
from interlace.server.tensor_json import to_json
from interlace.shm.arena import Arena

_PIECE_BYTES: Final = 1 << 20
#: Room for a packed body is this many times its size at first, and as many times that if need be.
_GROWTH: Final = 4


class LargeBodies:
    """Begins inferences whose bodies need more than one turn of the loop."""

    def __init__(
        self,
        table: ModelTable,
        arena: Arena,
        view: Callable[[Span], memoryview],
        limits: HttpLimits,
        faults: InternalErrors,
    ) -> None:
        self._table = table
        self._arena = arena
        self._view = view
        self._limits = limits
        self._faults = faults
        self._process = BodyDecoder(arena)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, inference: Inference, head: RequestHead, body: ArenaBody | bytearray) -> None:
        """Begin one inference; a ``ArenaBody`` is its own already."""
        if type(body) is ArenaBody:
            inference.held.own(body.offset)
        task = asyncio.get_running_loop().create_task(self._run(inference, head, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def write(self, inference: Inference, reply: Reply, outputs: Sequence[Tensor]) -> None:
        """Answer with a reply whose large outputs are written as JSON a piece a turn."""
        task = asyncio.get_running_loop().create_task(self._write(inference, reply, outputs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def check_length(self, head: RequestHead) -> None:
        """Refuse at its head a body that no request of the model needs.

        Raises:
            ServeError: it is too large, or there is no such model.
        """
        if head.encoding:
            return
        limit = self.limit_bytes(head)
        if head.length > limit:
            raise _too_large(f"the request body of {head.length} bytes exceeds", limit)

    def limit_bytes(self, head: RequestHead) -> int:
        """The largest body of a request, unpacked.

        Raises:
            ServeError: there is no such model.
        """
        names, limits = head.names, self._limits
        model = self._table.resolve(names[0], names[1] if len(names) > 1 else "").model
        in_json = head.json_length < 0
        most = limits.json_bytes if in_json else limits.body_bytes
        tensors = largest_bytes(model, in_json)
        if tensors is None:
            return most
        # A batch that is somewhat too large is told so by the model's own check.
        return min(most, max(_PIECE_BYTES, max(head.json_length, 0) + 2 * tensors))

    def close(self) -> None:
        """Refuse what is not decoded yet."""
        self._process.close()

    async def _run(
        self, inference: Inference, head: RequestHead, body: ArenaBody | bytearray
    ) -> None:
        try:
            await self._prepare(inference, head, body)
        except ServeError as error:
            inference.refuse(error)
        except Exception as error:
            inference.refuse(self._faults.refusal(error, "a large request"))

    async def _prepare(
        self, inference: Inference, head: RequestHead, body: ArenaBody | bytearray
    ) -> None:
        landing = body if isinstance(body, ArenaBody) else await self._copied(inference, head, body)
        if head.encoding:
            landing = await self._unpacked(inference, head, landing)
        json_bytes = landing.length if head.json_length < 0 else head.json_length
        if json_bytes <= self._limits.here_bytes:
            _still_wanted(inference)
            inference.start(landing if head.json_length >= 0 else landing.view.tobytes())
            return
        check_json(json_bytes, landing.length)
        has_header = head.json_length >= 0
        decoded, slot = await self._process.decode(landing, json_bytes, has_header)
        inference.held.own(slot)
        _still_wanted(inference)
        inference.begin(decoded, landing if has_header else None)

    async def _write(self, inference: Inference, reply: Reply, outputs: Sequence[Tensor]) -> None:
        try:
            texts = {tensor.name: await self._text(inference, tensor) for tensor in outputs}
            _still_wanted(inference)
            inference.answer_with(reply, texts)
        except ServeError as error:
            inference.end(reply, error)
        except Exception as error:
            inference.end(reply, self._faults.refusal(error, "a large reply"))

    async def _text(self, inference: Inference, tensor: Tensor) -> bytes:
        view, pieces = self._view(tensor.span), []
        for at in range(0, len(view), TEXT_BYTES):
            _still_wanted(inference)
            piece = to_json(tensor.name, tensor.datatype, view[at : at + TEXT_BYTES])
            pieces.append(piece[1:-1])
            await asyncio.sleep(0)
        return b"[" + b",".join(pieces) + b"]"

    async def _copied(self, inference: Inference, head: RequestHead, body: bytearray) -> ArenaBody:
        in_front = head.json_length >= 0 and not head.encoding
        landing = ArenaBody(self._arena, len(body), head.json_length if in_front else len(body))
        inference.held.own(landing.offset)
        source = memoryview(body)
        for at in range(0, len(body), _PIECE_BYTES):
            landing.view[at : at + _PIECE_BYTES] = source[at : at + _PIECE_BYTES]
            await asyncio.sleep(0)
        return landing

    async def _unpacked(
        self, inference: Inference, head: RequestHead, packed: ArenaBody
    ) -> ArenaBody:
        limit = min(self.limit_bytes(head), self._limits.heap_bytes // 2)
        room = max(self._limits.here_bytes, packed.length)
        while True:
            room = min(limit, room * _GROWTH)
            _still_wanted(inference)
            inference.held.count(room)
            plain = ArenaBody(
                self._arena, room, head.json_length if head.json_length >= 0 else room
            )
            inference.held.own(plain.offset)
            if await self._process.unpack(packed, head.encoding, plain):
                inference.held.disown(packed.offset)
                return plain
            inference.held.disown(plain.offset)
            if room == limit:
                raise _too_large("the body unpacks to more than", limit)


def _still_wanted(inference: Inference) -> None:
    if inference.gone:
        raise ServeError(Reason.CANCELLED, "the client went away")


def _too_large(what: str, limit: int) -> ServeError:
    return ServeError(
        Reason.TOO_LARGE, f"{what} {limit} bytes, the most that a request of this model may hold"
    )
