"""A batch's inputs: one request's where they lie, several requests' gathered with one copy."""

from __future__ import annotations

from collections.abc import Collection
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from interlace.core.errors import bad_input
from interlace.core.tensor import BYTES, element_count
from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import Column, RunBatch
from interlace.formats.arrays import NUMPY_TYPES
from interlace.formats.runner import Array
from interlace.shm.arena import ArenaMap

_LENGTH: Final = Struct("<I")


def unpack_strings(parts: list[memoryview], shape: tuple[int, ...], name: str) -> Array:
    """An object array of ``shape`` from v2 binary parts, one after the other.

    Raises:
        ServeError: the elements do not fill the shape, or a length reaches beyond its part.
    """
    elements: list[bytes] = []
    for part in parts:
        at = 0
        while at < len(part):
            start = at + _LENGTH.size
            if start > len(part):
                raise bad_input(f"BYTES input '{name}' ends within a length")
            at = start + _LENGTH.unpack_from(part, at)[0]
            if at > len(part):
                raise bad_input(f"BYTES input '{name}' ends within an element")
            elements.append(bytes(part[start:at]))
    if len(elements) != element_count(shape):
        raise bad_input(
            f"BYTES input '{name}' has {len(elements)} elements, "
            f"its shape {list(shape)} needs {element_count(shape)}"
        )
    array: Array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def pack_strings(array: Array) -> bytes:
    """The v2 binary form of an array of bytes or text (as UTF-8)."""
    pieces: list[bytes] = []
    for element in array.reshape(-1).tolist():
        data = element if isinstance(element, bytes) else str(element).encode()
        pieces += (_LENGTH.pack(len(data)), data)
    return b"".join(pieces)


class InputArray(NamedTuple):
    """An input array and where its bytes lie; ``block`` if they were gathered there."""

    array: Array
    arena: int
    offset: int
    block: int | None


class BatchInputs:
    """Turns references into arrays.

    Gathering is the GPU-DMA primitive for a CPU: scattered request buffers become one contiguous
    batch in one copy. The target is a block of the worker's arena: freed blocks are reused last in,
    first out, and an output that is the input (or a slice of it) needs no second copy.
    """

    def __init__(self, arenas: ArenaMap, blocks: OutputBlocks) -> None:
        self._arenas = arenas
        self._blocks = blocks

    def sources(self, run: RunBatch, batched: bool) -> dict[str, InputArray]:
        """The batch's arrays by input name; dims are [rows, ...] if the model is batched.

        Rows of padding are zeros (empty text) behind the others.

        Raises:
            ServeError: a client's strings do not fill their shape.
            ValueError: a span reaches out of its arena or has another size than its shape needs.
            MemoryError: no room to gather.
        """
        found: dict[str, InputArray] = {}
        rows = sum(run.rows)
        padding = max(0, run.padded_rows - rows) if batched else 0
        try:
            for column in run.columns:
                dims = (rows, *column.dims[1:]) if batched else column.dims
                found[column.name] = self._source(column, dims, padding)
        except BaseException:
            self.release(found)
            raise
        return found

    def release(self, sources: dict[str, InputArray], kept: Collection[int] = ()) -> None:
        """Free what was gathered, but for the blocks ``kept``."""
        for source in sources.values():
            if source.block is not None and source.block not in kept:
                self._blocks.give_back(source.block)

    def _source(self, column: Column, dims: tuple[int, ...], padding: int = 0) -> InputArray:
        if column.datatype == BYTES:
            array = unpack_strings(self._parts(column), dims, column.name)
            if padding:
                array = np.concatenate([array, np.full((padding, *dims[1:]), b"", object)])
            return InputArray(array, 0, 0, None)
        dtype = NUMPY_TYPES[column.datatype]
        offset = column.offsets[0]
        if padding or len(column.offsets) > 1 or offset % dtype.itemsize:
            return self._gather(column, dims, dtype, padding)
        memory = self._arenas.memory(column.arenas[0])
        array = np.ndarray(dims, dtype, memory, offset)
        _check_size(column, array)
        return InputArray(array, column.arenas[0], offset, None)

    def _gather(
        self, column: Column, dims: tuple[int, ...], dtype: np.dtype[Any], padding: int
    ) -> InputArray:
        nbytes = sum(column.sizes)
        padding_bytes = padding * (nbytes // dims[0]) if padding else 0
        block = self._blocks.take(nbytes + padding_bytes)
        arena = self._blocks.arena
        try:
            into, at = arena.memory, block
            memory = self._arenas.memory
            columns = zip(column.arenas, column.offsets, column.sizes, strict=True)
            for number, offset, size in columns:
                into[at : at + size] = memory(number)[offset : offset + size]
                at += size
            array: Array = np.ndarray(dims, dtype, into, block)
            _check_size(column, array)
            if padding:
                array = np.ndarray((dims[0] + padding, *dims[1:]), dtype, into, block)
                array[dims[0] :] = 0
        except BaseException:
            self._blocks.give_back(block)
            raise
        return InputArray(array, arena.number, block, block)

    def _parts(self, column: Column) -> list[memoryview]:
        columns = zip(column.arenas, column.offsets, column.sizes, strict=True)
        return [self._arenas.memory(number)[at : at + size] for number, at, size in columns]


def _check_size(column: Column, array: Array) -> None:
    if array.nbytes != sum(column.sizes):
        raise ValueError(
            f"input '{column.name}' of shape {list(array.shape)} needs {array.nbytes} bytes, "
            f"the requests brought {sum(column.sizes)}"
        )
