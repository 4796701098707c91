"""One batch in a worker: inputs in place, the model, outputs in place, each phase timed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from struct import Struct
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from interlace.core.errors import bad_input
from interlace.core.tensor import BYTES, TensorSpec, element_count, frame
from interlace.device.cpu.resident import ResidentModel
from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import BatchOutput, BatchResult, Column, RunBatch
from interlace.formats.arrays import NUMPY_TYPES
from interlace.formats.runner import Array, TypedArray
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
    elements = array.reshape(-1).tolist()
    return frame([one if isinstance(one, bytes) else str(one).encode() for one in elements])


def output_bytes(value: TypedArray) -> memoryview:
    """The bytes of an output as they go to the client."""
    if value.datatype == BYTES:
        return memoryview(pack_strings(value.array))
    return memoryview(np.ascontiguousarray(value.array).reshape(-1).view(np.uint8).data)


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

    def by_request(self, run: RunBatch, batched: bool) -> list[dict[str, Array]]:
        """Each request's arrays, read-only where they lie; text is copied.

        Raises:
            ServeError, ValueError: as ``sources``.
        """
        found: list[dict[str, Array]] = [{} for _ in run.rows]
        memory = self._arenas.memory
        for column in run.columns:
            name, datatype, dims = column.name, column.datatype, column.dims
            dtype = NUMPY_TYPES[datatype]
            places = zip(run.rows, column.arenas, column.offsets, column.sizes, strict=True)
            for inputs, (rows, number, offset, size) in zip(found, places, strict=True):
                own = (rows, *dims[1:]) if batched else dims
                if datatype == BYTES:
                    part = memory(number)[offset : offset + size]
                    inputs[name] = unpack_strings([part], own, name)
                    continue
                array: Array = np.ndarray(own, dtype, memory(number), offset)
                if array.nbytes != size:
                    raise _wrong_size(name, array, size)
                array.flags.writeable = False
                inputs[name] = array
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
        raise _wrong_size(column.name, array, sum(column.sizes))


def _wrong_size(name: str, array: Array, nbytes: int) -> ValueError:
    return ValueError(
        f"input '{name}' of shape {list(array.shape)} needs {array.nbytes} bytes, "
        f"the requests brought {nbytes}"
    )


class OutputWriter:
    """Puts one batch's outputs where replies can point at them.

    ``taken`` are the blocks the replies refer to; ``borrowed`` those of gathered inputs among them.
    """

    def __init__(
        self,
        blocks: OutputBlocks,
        sources: Mapping[str, InputArray],
        rows: Sequence[int],
        batched: bool,
    ) -> None:
        self._blocks = blocks
        self._sources = sources
        self._rows = rows
        self._batched = batched
        self.taken: list[int] = []
        self.borrowed: set[int] = set()

    def put(self, spec: TensorSpec, array: Array) -> BatchOutput:
        """Place one output.

        Raises:
            ValueError: its first dimension is not the batch's row count.
            MemoryError: no room.
        """
        total = sum(self._rows)
        if self._batched and (array.ndim == 0 or array.shape[0] != total):
            raise ValueError(
                f"output '{spec.name}' has shape {list(array.shape)}, expected {total} rows first"
            )
        if spec.datatype == BYTES:
            return self._put_strings(spec, array)
        arena, offset = self._place(array)
        row_bytes = array.nbytes // total if self._batched else array.nbytes
        return BatchOutput(spec.name, spec.datatype, array.shape, arena, offset, row_bytes, ())

    def undo(self) -> None:
        """Free what was taken here, not the blocks of gathered inputs."""
        for offset in self.taken:
            if offset not in self.borrowed:
                self._blocks.give_back(offset)

    def _place(self, array: Array) -> tuple[int, int]:
        # An array that owns its memory is no part of an input: most outputs stop here.
        if array.base is not None and array.flags.c_contiguous:
            for source in self._sources.values():
                if (start := _within(array, source.array)) is not None:
                    if source.block is not None and source.block not in self.borrowed:
                        self.borrowed.add(source.block)
                        self.taken.append(source.block)
                    return source.arena, source.offset + start
        offset = self._take(array.nbytes)
        arena = self._blocks.arena
        np.copyto(np.ndarray(array.shape, array.dtype, arena.memory, offset), array)
        return arena.number, offset

    def _put_strings(self, spec: TensorSpec, array: Array) -> BatchOutput:
        if self._batched:
            ends = np.cumsum(self._rows)
            parts = [
                pack_strings(array[end - rows : end])
                for rows, end in zip(self._rows, ends, strict=True)
            ]
        else:
            parts = [pack_strings(array)]
        sizes = tuple(map(len, parts))
        offset = self._take(sum(sizes))
        arena = self._blocks.arena
        arena.memory[offset : offset + sum(sizes)] = b"".join(parts)
        return BatchOutput(spec.name, BYTES, array.shape, arena.number, offset, 0, sizes)

    def _take(self, nbytes: int) -> int:
        offset = self._blocks.take(nbytes)
        self.taken.append(offset)
        return offset


def _within(part: Array, whole: Array) -> int | None:
    """Where ``part`` starts in the bytes of ``whole``; ``None`` if it is not inside."""
    if part is whole:
        return 0
    if whole.dtype == np.object_:
        return None
    start: int = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return start if start >= 0 and start + part.nbytes <= whole.nbytes else None


def execute(
    run: RunBatch, resident: ResidentModel, intake: BatchInputs, blocks: OutputBlocks
) -> BatchResult:
    """Run a batch to its answer.

    Raises:
        Exception: whatever the model raises; nothing stays allocated then.
    """
    batched, runner = resident.signature.batched, resident.runner
    if not batched and len(run.rows) > 1:
        raise ValueError(f"{len(run.rows)} requests for a model that takes one at a time")
    started = perf_counter()
    sources = intake.sources(run, batched)
    # A ring's slots are used again once the batch has ended: outputs cannot stay there.
    results = OutputWriter(blocks, {} if run.staged else sources, run.rows, batched)
    try:
        gathered = perf_counter()
        arrays = runner.run({name: source.array for name, source in sources.items()})
        inferred = perf_counter()
        outputs = _outputs(run, resident, arrays, results)
    except BaseException:
        results.undo()
        intake.release(sources)
        raise
    intake.release(sources, kept=results.borrowed)
    if results.taken:
        blocks.hold(run.batch, results.taken)
    return BatchResult(
        run.batch,
        outputs,
        batched,
        bool(results.taken),
        (gathered - started) * 1e3,
        (inferred - gathered) * 1e3,
        (perf_counter() - inferred) * 1e3,
    )


def _outputs(
    run: RunBatch, resident: ResidentModel, arrays: Mapping[str, Array], results: OutputWriter
) -> tuple[BatchOutput, ...]:
    wanted = run.wanted
    return tuple(
        results.put(spec, _kept(_named(spec, arrays), run, resident.signature.batched))
        for spec in resident.signature.outputs
        if not wanted or spec.name in wanted
    )


def _kept(array: Array, run: RunBatch, batched: bool) -> Array:
    """An output without the rows of padding."""
    if not batched or array.ndim == 0 or run.padded_rows <= (rows := sum(run.rows)):
        return array
    return array[:rows] if len(array) == run.padded_rows else array


def _named(spec: TensorSpec, arrays: Mapping[str, Array]) -> Array:
    array = arrays.get(spec.name)
    if array is None:
        raise ValueError(f"no output '{spec.name}' among {sorted(arrays)}")
    return array
