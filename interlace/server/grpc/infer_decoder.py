"""Infer requests off the wire: their tensors into the arena, once, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.tensor import Span, Tensor
from interlace.server.body_decoder import Coding
from interlace.server.dataplane.call import DecodedRequest
from interlace.server.dataplane.inference import InferenceContext, gathered
from interlace.server.grpc.infer_head import InferHeads, check_count
from interlace.server.grpc.infer_wire import RAW_TAG, malformed, scan
from interlace.server.limits import FIELDS_MAX, TENSORS_MAX, GrpcLimits, HeapBudget, HeapReservation
from interlace.shm.blocks import ArenaBlocks

_SMALL_BYTES: Final = 4096
#: A longer head, of typed contents, is read in another process: 16 MiB take up to two seconds.
_HERE_BYTES: Final = 64 << 10


class DecodedInfer:
    """A request whose tensors lie in the arena.

    It owns the ``blocks`` of the arena that hold them, until its call is answered.
    """

    __slots__ = ("blocks", "id", "inputs", "request")

    def __init__(
        self, request: DecodedRequest, id: str, inputs: tuple[Tensor, ...], blocks: ArenaBlocks
    ) -> None:
        self.request = request
        self.id = id
        self.inputs = inputs
        self.blocks = blocks


@dataclass(slots=True)
class UnreadInfer:
    """A request whose head is yet to be read.

    It owns the blocks of the arena that hold the head, and those with its raw tensors.
    """

    head: Span
    head_blocks: ArenaBlocks
    id: str
    spans: Sequence[Span]
    blocks: ArenaBlocks


class InferDecoder:
    """Puts requests into the arena as they come in. What raises ``ServeError`` keeps nothing."""

    def __init__(self, context: InferenceContext, limits: GrpcLimits, heap: HeapBudget) -> None:
        """``heap`` bounds what is kept of unfinished messages outside of the arena."""
        self.limits = limits
        self.heap = heap
        self.arena = context.arena
        self._number = context.arena.number
        self._memory = context.arena.memory
        self._heads = InferHeads()
        self._regions = context.regions
        self._bodies = context.bodies

    def whole(self, message: memoryview) -> DecodedInfer | UnreadInfer:
        """Take a request that is there in one piece."""
        data = bytes(message) if len(message) < _SMALL_BYTES else message
        rest, call_id, raws = scan(data)
        blocks = ArenaBlocks(self.arena)
        if len(raws) == 2 and len(rest) <= _HERE_BYTES:
            start, size = raws
            request = self._heads.find(rest, (size,))
            if request.in_place is not None:  # the common case: one tensor
                offset = blocks.alloc(size)
                self._memory[offset : offset + size] = data[start : start + size]
                source, span = request.in_place[0], Span(self._number, offset, size)
                tensor = Tensor(source.name, source.datatype, source.shape, span)
                return DecodedInfer(request, call_id, (tensor,), blocks)
        try:
            places = zip(raws[::2], raws[1::2], strict=True)
            spans = [self._copied(data[at : at + size], blocks) for at, size in places]
            return self._taken(rest, call_id, spans, blocks)
        except ServeError:
            blocks.free()
            raise

    def received(
        self, message: bytes, spans: Sequence[Span], blocks: ArenaBlocks
    ) -> DecodedInfer | UnreadInfer:
        """Take a request whose raw tensors were received into ``blocks`` already, at ``spans``."""
        rest, call_id, _ = scan(message)
        return self._taken(rest, call_id, spans, blocks)

    async def read(self, unread: UnreadInfer) -> DecodedInfer | ServeError:
        """The request once its head was read, elsewhere; or why it is not taken."""
        blocks, spans = unread.blocks, unread.spans
        try:
            try:
                request, more = await self._bodies.decode(unread.head, Coding.PROTOBUF)
            finally:
                unread.head_blocks.free()
            blocks.take_over(more)
            check_count(request, len(spans))
            return self._placed(request, unread.id, spans, blocks)
        except ServeError as error:
            blocks.free()
            return error
        except BaseException:
            blocks.free()
            raise

    def _taken(
        self, rest: bytes, call_id: str, spans: Sequence[Span], blocks: ArenaBlocks
    ) -> DecodedInfer | UnreadInfer:
        if len(rest) > _HERE_BYTES:
            head_blocks = ArenaBlocks(self.arena)
            head = self._copied(rest, head_blocks)
            return UnreadInfer(head, head_blocks, call_id, spans, blocks)
        request = self._heads.find(rest, tuple([span.nbytes for span in spans]))
        return self._placed(request, call_id, spans, blocks)

    def _placed(
        self, request: DecodedRequest, call_id: str, spans: Sequence[Span], blocks: ArenaBlocks
    ) -> DecodedInfer:
        inputs = gathered(request.sources, spans, blocks, self.arena, self._regions)
        return DecodedInfer(request, call_id, inputs, blocks)

    def _copied(self, value: bytes | memoryview, blocks: ArenaBlocks) -> Span:
        size = len(value)
        offset = blocks.alloc(size)
        self._memory[offset : offset + size] = value
        return Span(self._number, offset, size)


#: Gets a request, one whose head is yet to be read, or why it was not taken.
OnReceived = Callable[[DecodedInfer | UnreadInfer | ServeError], None]


class InferSink:
    """A request in pieces: tensors straight into the arena, the rest kept until it is complete.

    ``done`` gets the request, or why it was not taken; then the sink swallows what is left of it.
    """

    def __init__(self, decoder: InferDecoder, nbytes: int, done: OnReceived) -> None:
        self._decoder = decoder
        self._left = nbytes
        self._done: OnReceived | None = done
        self._head = bytearray()
        self._reserved = HeapReservation(decoder.heap)
        self._tag = bytearray()  #: the start of a field whose length has not come whole
        self._skip = 0  #: bytes left of a field that belongs to the head
        self._fields = 0  #: begun so far
        self._blocks = ArenaBlocks(decoder.arena)
        self._spans: list[Span] = []
        #: What has a place and is left of the tensor that is being received.
        self._target: memoryview | None = None
        self._placed = 0  #: bytes of it that have a place

    def feed(self, chunk: memoryview) -> None:
        try:
            while chunk and self._done is not None:
                used = self._take(chunk)
                self._left -= used
                chunk = chunk[used:]
        except ServeError as error:
            self._fail(error)

    def landing(self) -> memoryview | None:
        return self._target

    def landed(self, nbytes: int) -> None:
        self._left -= nbytes
        try:
            self._advance(nbytes)
        except ServeError as error:
            self._fail(error)

    def finish(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        try:
            if self._tag or self._skip or self._target is not None:
                raise malformed("it ends inside a field")
            decoded = self._decoder.received(bytes(self._head), self._spans, self._blocks)
        except ServeError as error:
            self._done = done
            self._fail(error)
            return
        self._blocks = ArenaBlocks(self._decoder.arena)  # the others belong to the request now
        self.abandon()
        done(decoded)

    def abandon(self) -> None:
        self._done = None
        self._target = None
        self._blocks.free()
        self._reserved.release()
        self._head = bytearray()

    def _fail(self, error: ServeError) -> None:
        done = self._done
        self.abandon()
        if done is not None:
            done(error)

    def _advance(self, nbytes: int) -> None:
        if self._target is None:
            return
        self._target = self._target[nbytes:] or None
        if self._target is None and self._placed < self._spans[-1].nbytes:
            number, offset, size = self._spans[-1]
            filled = self._placed
            offset, self._placed = self._blocks.grow(offset, filled, size)
            self._spans[-1] = Span(number, offset, size)
            self._target = self._decoder.arena.memory[offset + filled : offset + self._placed]

    def _take(self, chunk: memoryview) -> int:
        if self._target is not None:
            used = min(len(self._target), len(chunk))
            self._target[:used] = chunk[:used]
            self._advance(used)
            return used
        if self._skip:
            used = min(self._skip, len(chunk))
            self._keep(chunk[:used])
            self._skip -= used
            return used
        self._tag.append(chunk[0])
        self._start_field()
        return 1

    def _start_field(self) -> None:
        """Begin a field once its tag and length are whole."""
        tag = self._tag
        if len(tag) > 20:
            raise malformed("a field that begins with more than 20 bytes")
        ends = [i for i, byte in enumerate(bytes(tag)) if byte < 0x80]
        if not ends:
            return
        if ends[0] and not tag[ends[0]]:
            raise malformed("a tag with needless bytes")
        kind = tag[0] & 7
        if kind in (1, 5):
            self._begin_skip(8 if kind == 1 else 4)
        elif kind not in (0, 2):
            raise malformed(f"wire type {kind}")
        elif len(ends) == 2:
            size = 0
            for byte in reversed(tag[ends[0] + 1 :]):
                size = size << 7 | byte & 0x7F
            if bytes(tag[: ends[0] + 1]) == bytes((RAW_TAG,)):
                self._begin_tensor(size)
            else:
                self._begin_skip(size if kind == 2 else 0)

    def _begin_skip(self, size: int) -> None:
        self._count_field()
        self._keep(self._tag)
        self._tag.clear()
        self._skip = size

    def _count_field(self) -> None:
        self._fields += 1
        if self._fields > FIELDS_MAX:
            raise malformed(f"more than {FIELDS_MAX} fields")

    def _begin_tensor(self, size: int) -> None:
        self._count_field()
        self._tag.clear()
        if size >= self._left:  # the byte that ended its length is still counted
            raise malformed(f"a tensor of {size} bytes runs past its end")
        if len(self._spans) >= TENSORS_MAX:
            raise malformed(f"more than {TENSORS_MAX} tensors")
        arena = self._decoder.arena
        offset, self._placed = self._blocks.alloc_coming(size)
        self._spans.append(Span(arena.number, offset, size))
        self._target = arena.memory[offset : offset + self._placed] if size else None

    def _keep(self, data: bytearray | memoryview) -> None:
        limit = self._decoder.limits.max_heads_bytes
        if len(self._head) + len(data) > limit:
            raise ServeError(
                Reason.TOO_LARGE, f"over {limit} bytes besides raw_input_contents: send tensors raw"
            )
        self._reserved.resize(len(self._head) + len(data))
        self._head += data
