"""Where a request body is received: in the arena, on the heap, or nowhere if it was refused."""

from __future__ import annotations

from typing import Final

from interlace.core.errors import ServeError, bad_input
from interlace.core.model import Model
from interlace.core.tensor import BYTES, ITEM_BYTES, TensorSpec
from interlace.server.heap_budget import HeapBudget, HeapReservation
from interlace.server.http.decoded_request import DecodedRequest, InputSource
from interlace.server.http.responses import HttpError
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
        self._reserved.resize(len(self.data) + stop - start)
        self.data += memoryview(data)[start:stop]
        return stop

    def drop(self) -> None:
        self._reserved.release()


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
