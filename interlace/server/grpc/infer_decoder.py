"""Infer requests off the wire: their tensors into the arena, once, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.tensor import Span, Tensor
from interlace.server.grpc.infer_head import InferHead, InferTemplate, InferTemplates
from interlace.server.grpc.infer_wire import RAW_TAG, malformed, scan
from interlace.server.grpc.limits import TENSORS_MAX, Allowance, GrpcLimits
from interlace.server.shared_memory import Regions
from interlace.shm.arena import Arena

_SMALL_BYTES: Final = 4096
_ID_BYTES_MAX: Final = 4096


class DecodedInfer:
    """A request whose tensors lie in the arena.

    ``blocks`` are the arena's blocks that hold them, to be freed once the request is answered.
    """

    __slots__ = ("blocks", "id", "inputs", "template")

    def __init__(
        self, template: InferTemplate, id: str, inputs: tuple[Tensor, ...], blocks: tuple[int, ...]
    ) -> None:
        self.template = template
        self.id = id
        self.inputs = inputs
        self.blocks = blocks


class InferDecoder:
    """Puts requests into the arena as they come in. What raises ``ServeError`` keeps nothing."""

    def __init__(self, arena: Arena, regions: Regions, limits: GrpcLimits) -> None:
        self.limits = limits
        self.heap = Allowance(limits.max_heap_bytes)
        self._arena = arena
        self._number = arena.number
        self._memory = arena.memory
        self._templates = InferTemplates()
        self._regions = regions

    def whole(self, message: memoryview) -> DecodedInfer:
        """Take a request that is there in one piece."""
        data = bytes(message) if len(message) < _SMALL_BYTES else message
        rest, call_id, raws = scan(data)
        template = self._template(rest, call_id, tuple(raws[1::2]))
        head = template.head
        if len(raws) == 2 and not head.ranges:  # the common case: one tensor
            start, size = raws
            offset = self.alloc(size)
            self._memory[offset : offset + size] = data[start : start + size]
            name, datatype, shape = head.inputs[0]
            span = Span(self._number, offset, size)
            tensor = Tensor(name, datatype, shape, span)
            return DecodedInfer(template, call_id, (tensor,), (offset,))
        values = [data[at : at + size] for at, size in zip(raws[::2], raws[1::2], strict=True)]
        return self._store(template, call_id, values)

    def landed(self, message: bytes, blocks: Sequence[int], sizes: Sequence[int]) -> DecodedInfer:
        """Take a request whose raw tensors were received into ``blocks`` already."""
        rest, call_id, _ = scan(message)
        template = self._template(rest, call_id, tuple(sizes))
        head = template.head
        there = [Span(self._number, at, size) for at, size in zip(blocks, sizes, strict=True)]
        if head.typed is not None or head.ranges:
            return self._store(template, call_id, (), there)
        return DecodedInfer(template, call_id, _tensors(head, there), tuple(blocks))

    def _template(self, rest: bytes, call_id: str, sizes: tuple[int, ...]) -> InferTemplate:
        if len(call_id) > _ID_BYTES_MAX:
            raise malformed(f"an id of {len(call_id)} characters, limit {_ID_BYTES_MAX}")
        return self._templates.find(rest, sizes)

    def alloc(self, nbytes: int) -> int:
        """A block of the arena.

        Raises:
            ServeError: TOO_LARGE or OVERLOADED.
        """
        offset = self._arena.alloc(nbytes)
        if offset is not None:
            return offset
        size = self._arena.size_bytes
        if nbytes > size // 2:
            raise ServeError(
                Reason.TOO_LARGE, f"a tensor of {nbytes} bytes; the server has {size} for all"
            )
        raise ServeError(
            Reason.OVERLOADED,
            f"no room for {nbytes} more bytes: {self._arena.used_bytes} of {size} are in use",
            retry_after_ms=100.0,
        )

    def view(self, offset: int, nbytes: int) -> memoryview:
        """A block's bytes, writable."""
        return self._memory[offset : offset + nbytes]

    def free(self, blocks: Sequence[int]) -> None:
        """Give blocks back."""
        for block in blocks:
            self._arena.free(block)

    def _store(
        self,
        template: InferTemplate,
        call_id: str,
        values: Sequence[bytes | memoryview],
        landed: Sequence[Span] = (),
    ) -> DecodedInfer:
        """Copy what is not in the arena yet, each input in its turn: in ``landed``, in client
        shared memory, typed in the head, or among ``values``."""
        head = template.head
        sources = iter(values if head.typed is None else head.typed)
        there = iter(landed)
        spans: list[Span] = []
        blocks: list[int] = []
        try:
            for position in range(len(head.inputs)):
                region = head.ranges.get(position)
                if region is None and landed:
                    spans.append(next(there))
                    continue
                value = b"" if region is not None else next(sources)
                size = len(value) if region is None else region.nbytes
                offset = self.alloc(size)
                blocks.append(offset)
                spans.append(Span(self._number, offset, size))
                if region is None:
                    self.view(offset, size)[:] = value
                else:
                    self._regions.read_into(region.region, region.offset, self.view(offset, size))
        except ServeError:
            self.free(blocks)
            raise
        kept = [span.offset for span in landed]
        return DecodedInfer(template, call_id, _tensors(head, spans), (*kept, *blocks))


def _tensors(head: InferHead, spans: Sequence[Span]) -> tuple[Tensor, ...]:
    return tuple([Tensor(*each, span) for each, span in zip(head.inputs, spans, strict=True)])


class InferSink:
    """A request in pieces: tensors straight into the arena, the rest kept until it is complete.

    ``done`` gets the request, or why it was not taken; then the sink swallows what is left of it.
    """

    def __init__(
        self, decoder: InferDecoder, nbytes: int, done: Callable[[DecodedInfer | ServeError], None]
    ) -> None:
        self._decoder = decoder
        self._left = nbytes
        self._done: Callable[[DecodedInfer | ServeError], None] | None = done
        self._head = bytearray()
        self._tag = bytearray()  #: the start of a field whose length has not come whole
        self._skip = 0  #: bytes left of a field that belongs to the head
        self._blocks: list[int] = []
        self._sizes: list[int] = []
        self._target: memoryview | None = None  #: what is left of the tensor being received

    def feed(self, chunk: memoryview) -> None:
        """Take a piece of the message."""
        try:
            while chunk and self._done is not None:
                used = self._take(chunk)
                self._left -= used
                chunk = chunk[used:]
        except ServeError as error:
            self._fail(error)

    def landing(self) -> memoryview | None:
        """What is left of the tensor that is being received."""
        return self._target

    def landed(self, nbytes: int) -> None:
        """That much of it was received."""
        self._left -= nbytes
        self._advance(nbytes)

    def finish(self) -> None:
        """The message is complete."""
        done, self._done = self._done, None
        if done is None:
            return
        try:
            if self._tag or self._skip or self._target is not None:
                raise malformed("it ends inside a field")
            decoded = self._decoder.landed(bytes(self._head), self._blocks, self._sizes)
        except ServeError as error:
            self._done = done
            self._fail(error)
            return
        self._blocks = []
        self.abandon()
        done(decoded)

    def abandon(self) -> None:
        """The rest will not come."""
        self._done = None
        self._target = None
        blocks, self._blocks = self._blocks, []
        self._decoder.free(blocks)
        self._decoder.heap.give(len(self._head))
        self._head = bytearray()

    def _fail(self, error: ServeError) -> None:
        done = self._done
        self.abandon()
        if done is not None:
            done(error)

    def _advance(self, nbytes: int) -> None:
        if self._target is not None:
            self._target = self._target[nbytes:] or None

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
        self._keep(self._tag)
        self._tag.clear()
        self._skip = size

    def _begin_tensor(self, size: int) -> None:
        self._tag.clear()
        if size >= self._left:  # the byte that ended its length is still counted
            raise malformed(f"a tensor of {size} bytes runs past its end")
        if len(self._blocks) >= TENSORS_MAX:
            raise malformed(f"more than {TENSORS_MAX} tensors")
        offset = self._decoder.alloc(size)
        self._blocks.append(offset)
        self._sizes.append(size)
        self._target = self._decoder.view(offset, size) if size else None

    def _keep(self, data: bytearray | memoryview) -> None:
        limit = self._decoder.limits.max_heads_bytes
        if len(self._head) + len(data) > limit:
            raise ServeError(
                Reason.TOO_LARGE,
                f"over {limit} bytes besides raw_input_contents: send tensors raw",
            )
        self._decoder.heap.take(len(data))
        self._head += data
