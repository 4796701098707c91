"""Request bodies: received in the arena, on the heap, or nowhere; and the tensors in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

from interlace.core.errors import Reason, ServeError, bad_input
from interlace.core.model import Model
from interlace.core.tensor import BYTES, ITEM_BYTES, Span, Tensor, TensorSpec
from interlace.server.dataplane.call import DecodedRequest
from interlace.server.dataplane.tensor_places import InputSource
from interlace.server.errors import HttpError
from interlace.server.http.request_head import CHUNKED, RequestHead
from interlace.server.limits import HeapBudget, HeapReservation, HttpLimits
from interlace.shm.arena import Arena
from interlace.shm.blocks import ArenaBlocks, no_room

#: What is still read of a refused request so that the connection can stay open.
SKIP_BYTES: Final = 64 * 1024


class HeapBody:
    """A body of known length."""

    def __init__(self, length: int, budget: HeapBudget) -> None:
        self.data = bytearray()
        self._length = length
        self._reserved = HeapReservation(budget)

    @property
    def received(self) -> int:
        return len(self.data)

    @property
    def done(self) -> bool:
        return len(self.data) == self._length

    def take(self, data: bytearray, start: int, end: int) -> int:
        stop = min(end, start + self._length - len(self.data))
        self._keep(memoryview(data)[start:stop])
        return stop

    def drop(self) -> None:
        self._reserved.release()

    def _keep(self, piece: memoryview) -> None:
        self._reserved.resize(len(self.data) + len(piece))
        self.data += piece


class SkippedBody:
    """The body of a refused request, read and thrown away so that the connection can go on."""

    def __init__(self, length: int, error: HttpError | ServeError) -> None:
        self.error = error
        self.received = 0
        self._length = length

    @property
    def done(self) -> bool:
        return self.received == self._length

    def take(self, data: bytearray, start: int, end: int) -> int:
        stop = min(end, start + self._length - self.received)
        self.received += stop - start
        return stop

    def drop(self) -> None:
        """Nothing is held."""


#: A BYTES body is one element; its length goes in front.
LENGTH_BYTES: Final = 4


def decode_raw(model: Model, nbytes: int) -> DecodedRequest:
    """What a raw body of ``nbytes`` means to a model with one input; outputs come as bytes.

    Fixed dims: as many rows as the bytes make. One dim of -1: one row, that dim from the bytes.
    BYTES: one element, ``LENGTH_BYTES`` longer than the body.

    Raises:
        ServeError: the model has more inputs, or the bytes fit none of its shapes.
    """
    inputs = model.signature.inputs
    if len(inputs) != 1:
        raise bad_input(
            f"a raw body (Inference-Header-Content-Length: 0) needs a model with one input, "
            f"but '{model.name}' has {len(inputs)}"
        )
    spec = inputs[0]
    if spec.datatype == BYTES:
        dims, size = _one_element(model, spec), nbytes + LENGTH_BYTES
        source = InputSource(spec.name, BYTES, dims, -LENGTH_BYTES, size)
    else:
        source = InputSource(spec.name, spec.datatype, _shape(model, spec, nbytes), 0, nbytes)
    return DecodedRequest("", (source,), (), {"binary_data_output": True})


def _one_element(model: Model, spec: TensorSpec) -> tuple[int, ...]:
    if any(size not in (-1, 1) for size in spec.dims):
        raise _unfit(model, spec, "more than one BYTES element")
    ones = (1,) * len(spec.dims)
    return (1, *ones) if model.signature.batched else ones


def _shape(model: Model, spec: TensorSpec, nbytes: int) -> tuple[int, ...]:
    free = spec.dims.count(-1)
    row_bytes = ITEM_BYTES[spec.datatype]
    for size in spec.dims:
        row_bytes *= size if size >= 0 else 1
    if free > 1 or not row_bytes or nbytes % row_bytes:
        raise _unfit(model, spec, f"a multiple of {row_bytes} bytes and at most one free dim")
    count = nbytes // row_bytes
    batched = model.signature.batched
    if not free:
        if not batched and count != 1:
            raise _unfit(model, spec, f"exactly {row_bytes} bytes")
        return (count, *spec.dims) if batched else spec.dims
    dims = tuple(count if size < 0 else size for size in spec.dims)
    return (1, *dims) if batched else dims


def _unfit(model: Model, spec: TensorSpec, needs: str) -> Exception:
    return bad_input(
        f"a raw body does not fit input '{spec.name}' of '{model.name}': {spec.datatype} "
        f"{list(spec.dims)} needs {needs}"
    )


ALIGNMENT: Final = 64
#: A raw body is one tensor; a BYTES element needs room for its length in front.
RAW_PAD: Final = 64


class ArenaBody:
    """A block of the arena that receives one body: JSON first, tensors from an aligned address.

    The body owns the block until ``hand_over``. ``rest`` is what has a place and is still to be
    received; ``base`` is the offset in the arena of the first byte after the JSON part.
    """

    __slots__ = ("_blocks", "_pad", "_placed", "arena", "base", "json_length", "length", "offset",
                 "rest", "view")  # fmt: skip

    def __init__(
        self, arena: Arena, length: int, json_length: int, here: int | None = None
    ) -> None:
        """Allocate the block; of a body that is to come ``here`` bytes have come already.

        Raises:
            ServeError: the arena is full.
        """
        self._pad = pad = -json_length % ALIGNMENT if json_length else RAW_PAD
        self._blocks: ArenaBlocks | None = ArenaBlocks(arena)
        if here is None:
            start, room = self._blocks.alloc(pad + length), pad + length
        else:
            start, room = self._blocks.alloc_coming(pad + length, pad + here)
        self.arena = arena
        self.length = length
        self.json_length = json_length
        self._place(start, room - pad)
        self.rest = self.view

    def _place(self, start: int, placed: int) -> None:
        self._placed = placed  #: bytes of the body that have a place
        self.offset = start + self._pad  #: of the body's first byte in the arena
        self.base = self.offset + self.json_length
        self.view = self.arena.view(self.offset, placed)

    @property
    def received(self) -> int:
        return self._placed - len(self.rest)

    @property
    def done(self) -> bool:
        return not self.rest

    def take(self, data: bytearray, start: int, end: int) -> int:
        """Copy in what was received elsewhere; the position after what belongs to this body.

        Raises:
            ServeError: the arena is full.
        """
        while start < end and self.rest:
            count = min(end - start, len(self.rest))
            self.rest[:count] = memoryview(data)[start : start + count]
            self.landed(count)
            start += count
        return start

    def landed(self, nbytes: int) -> None:
        """Note that so much was received into ``rest``, and make room for more.

        Raises:
            ServeError: the arena is full.
        """
        self.rest = self.rest[nbytes:]
        if not self.rest and self._placed < self.length and self._blocks is not None:
            self._make_room(self._blocks)

    def _make_room(self, blocks: ArenaBlocks) -> None:
        pad, filled = self._pad, self._placed
        start, room = blocks.grow(self.offset - pad, pad + filled, pad + self.length)
        self._place(start, room - pad)
        self.rest = self.view[filled:]

    def json(self) -> bytes:
        return self.view[: self.json_length].tobytes()

    def cut(self, length: int) -> None:
        """Say how long the body is after all, no longer than the block was allocated for."""
        self.length = self._placed = length
        self.rest = self.view = self.view[:length]

    def hand_over(self) -> ArenaBlocks:
        """The block, for its next owner; the bytes stay readable here as long as that keeps it."""
        blocks, self._blocks = self._blocks, None
        assert blocks is not None, "a body has one owner after another"
        return blocks

    def drop(self) -> None:
        """Free the block, if it is still the body's."""
        if self._blocks is not None:
            self._blocks.free()


#: The first segment of a body, and its pad; each that follows is as large as all before.
_SEGMENT_BYTES: Final = 64 * 1024


class SegmentedBody(ArenaBody):
    """A body in blocks that are allocated as it comes, and never moved."""

    __slots__ = ("views",)

    def __init__(self, arena: Arena, length: int) -> None:
        """Allocate the first block.

        Raises:
            ServeError: the arena is full, or half of it is less than the body.
        """
        if length > arena.size_bytes // 2:
            raise no_room(arena, length)
        super().__init__(arena, min(length, _SEGMENT_BYTES - RAW_PAD), 0)
        self.length = length
        self.views = [self.view]

    def _make_room(self, blocks: ArenaBlocks) -> None:
        size = min(self.length - self._placed, RAW_PAD + self._placed)
        offset = blocks.alloc(size)
        self._placed += size
        self.rest = self.arena.view(offset, size)
        self.views.append(self.rest)


def aligned(nbytes: int) -> int:
    """The bytes that a tensor takes where another aligned one follows it."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


LINE_BYTES: Final = 4096  #: of a chunk's size with its extensions, or of a trailer field
TRAILER_LINES: Final = 64
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")


class _State(Enum):
    SIZE = "size"
    DATA = "data"
    AFTER = "after"
    TRAILER = "trailer"
    DONE = "done"


class ChunkedBody(HeapBody):
    """A body that comes in chunks, ``limit_bytes`` at most."""

    def __init__(self, limit_bytes: int, budget: HeapBudget) -> None:
        super().__init__(limit_bytes, budget)
        self._state = _State.SIZE
        self._left = 0
        self._line = bytearray()
        self._trailers = 0

    @property
    def done(self) -> bool:
        return self._state is _State.DONE

    def take(self, data: bytearray | bytes, start: int, end: int) -> int:
        """Take bytes ``start`` to ``end``; the position after what belongs to this body.

        Raises:
            HttpError: the framing is broken.
            ServeError: the body exceeds its limit, or all bodies theirs.
        """
        while start < end and self._state is not _State.DONE:
            if self._state is _State.DATA:
                stop = min(end, start + self._left)
                self._keep(memoryview(data)[start:stop])
                self._left -= stop - start
                start = stop
                if not self._left:
                    self._state = _State.AFTER
            else:
                start = self._take_line(data, start, end)
        return start

    def _take_line(self, data: bytearray | bytes, start: int, end: int) -> int:
        found = data.find(b"\n", start, end)
        stop = end if found < 0 else found + 1
        self._line += memoryview(data)[start:stop]
        if len(self._line) > LINE_BYTES:
            raise HttpError(400, f"a chunk's line exceeds {LINE_BYTES} bytes")
        if found >= 0:
            line, self._line = bytes(self._line), bytearray()
            if not line.endswith(b"\r\n"):
                raise HttpError(400, "a line of the chunked body does not end in CR LF")
            self._enter(line[:-2])
        return stop

    def _enter(self, line: bytes) -> None:
        if self._state is _State.SIZE:
            self._begin_chunk(line)
        elif self._state is _State.AFTER:
            if line:
                raise HttpError(400, f"chunk is longer than its size: {line[:32]!r} follows it")
            self._state = _State.SIZE
        elif not line:
            self._state = _State.DONE
        else:
            self._trailers += 1
            if self._trailers > TRAILER_LINES:
                raise HttpError(400, f"more than {TRAILER_LINES} trailer fields")

    def _begin_chunk(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise HttpError(400, f"malformed chunk size {line[:32]!r}")
        self._left = int(match[1], 16)
        if len(self.data) + self._left > self._length:
            raise ServeError(
                Reason.TOO_LARGE, f"the chunked body exceeds the limit of {self._length} bytes"
            )
        self._state = _State.DATA if self._left else _State.TRAILER


def in_place(sources: Sequence[InputSource], body: ArenaBody) -> tuple[Tensor, ...]:
    """Inputs that all stay where they were received."""
    base, arena = body.base, body.arena.number
    return tuple(
        [
            Tensor(name, datatype, shape, Span(arena, base + offset, nbytes))
            for name, datatype, shape, offset, nbytes, _, _, _ in sources
        ]
    )


def raw_spans(
    sources: Sequence[InputSource], body: ArenaBody | None, blocks: ArenaBlocks
) -> Iterator[Span]:
    """Where in the arena the inputs lie that follow the JSON part; copies of unaligned ones.

    Raises:
        ServeError: the arena is full.
    """
    for source in sources:
        if not source.follows:
            continue
        assert body is not None, "what follows the JSON part is in a body"
        offset, nbytes = body.base + source.offset, source.nbytes
        if not source.in_place:
            at = body.json_length + source.offset
            offset = blocks.alloc(max(1, nbytes))
            body.arena.view(offset, nbytes)[:] = body.view[at : at + nbytes]
        yield Span(body.arena.number, offset, nbytes)


def write_length(arena: Arena, body: ArenaBody) -> None:
    """Put the length of a raw body in front of it, for a model that takes BYTES."""
    length = body.length.to_bytes(LENGTH_BYTES, "little")
    arena.view(body.base - LENGTH_BYTES, LENGTH_BYTES)[:] = length


def check_json(json_bytes: int, nbytes: int) -> None:
    """Refuse a JSON part longer than its body.

    Raises:
        ServeError: it is.
    """
    if json_bytes > nbytes:
        raise bad_input(
            f"Inference-Header-Content-Length {json_bytes} exceeds the {nbytes} bytes sent"
        )


def wrong_size(decoded: DecodedRequest, body: ArenaBody) -> ServeError:
    """The refusal of a body whose binary part is not what its JSON says."""
    given = body.length - body.json_length
    named = ", ".join(f"'{s.name}' {s.nbytes}" for s in decoded.sources if s.follows)
    return bad_input(
        f"{given} bytes of binary data follow the JSON part, but its inputs take "
        f"{decoded.binary_bytes} ({named or 'none is binary'})"
    )


Body = ArenaBody | HeapBody | ChunkedBody | SkippedBody


def received_body(head: RequestHead, limits: HttpLimits, budget: HeapBudget) -> HeapBody:
    """Where a body is received that does not go straight to the arena."""
    if head.length == CHUNKED:
        binary = head.json_length >= 0 or bool(head.encoding)
        return ChunkedBody(limits.of_body(head.route.kind, binary), budget)
    return HeapBody(head.length, budget)
