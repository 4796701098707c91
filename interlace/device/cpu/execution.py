"""One batch in a worker: inputs in place, the model, outputs in place, each phase timed."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from interlace.core.tensor import TensorSpec
from interlace.device.cpu.inputs import BatchInputs
from interlace.device.cpu.outputs import OutputWriter
from interlace.device.cpu.resident import ResidentModel
from interlace.device.process.output_blocks import OutputBlocks
from interlace.device.process.wire import BatchOutput, BatchResult, RunBatch
from interlace.formats.runner import Array


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
