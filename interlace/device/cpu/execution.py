"""One batch in a worker: inputs in place, the model, outputs in place, each phase timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from interlace.core.tensor import BYTES, TensorSpec
from interlace.device.cpu.inputs import BatchInputs, InputArray, pack_strings
from interlace.device.cpu.resident import ResidentModel
from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import BatchOutput, BatchResult, RunBatch
from interlace.formats.runner import Array


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
    started = perf_counter()
    batched = resident.signature.batched
    if not batched and len(run.rows) > 1:
        raise ValueError(f"{len(run.rows)} requests for a model that takes one at a time")
    sources = intake.sources(run, batched)
    # A ring's slots are used again once the batch has ended: outputs cannot stay there.
    results = OutputWriter(blocks, {} if run.staged else sources, run.rows, batched)
    try:
        gathered = perf_counter()
        arrays = resident.runner.run({name: source.array for name, source in sources.items()})
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
