"""One partition in the process: its models, its batches on their way, and changes of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple

from interlace.core.tensor import Span
from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.graphs.program import BatchProgram, TensorSlot
from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.memory.parameters import row_addresses
from interlace.device.cuda.memory.registered import RegisteredArenas
from interlace.device.cuda.models.loaded import LoadedModel
from interlace.device.cuda.worker.context import GpuContext
from interlace.device.cuda.worker.weight_fetcher import Answers
from interlace.device.cuda.worker.wire import GpuAnswer, GpuRequest, Released, ReleaseLane
from interlace.device.process.error_text import error_text
from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import (
    BatchOutput,
    BatchResult,
    Column,
    Failed,
    Loaded,
    LoadModel,
    RunBatch,
    Unloaded,
    UnloadModel,
)


class OutputMemoryFull(Exception):
    """There is no output memory for a batch before others are freed."""


class InFlightBatch:
    """A launched batch, and what its answer needs. The GPU stores ``sequence`` when it ends."""

    __slots__ = (
        "_began",
        "_blocks",
        "_launched",
        "_program",
        "_taken",
        "_turn",
        "asked",
        "run",
        "sequence",
    )

    def __init__(
        self, asked: GpuRequest, run: RunBatch, program: BatchProgram, blocks: OutputBlocks
    ) -> None:
        self.asked = asked
        self.run = run
        self.sequence = 0
        self._program = program
        self._blocks = blocks
        self._taken: list[int] = []
        self._turn = 0
        self._began = self._launched = perf_counter()

    def launch(
        self, arenas: RegisteredArenas, staged: Mapping[str, Sequence[int]], sequence: int
    ) -> None:
        """Begin it on the GPU. ``staged`` are the addresses of rows that lie there already.

        Raises:
            OutputMemoryFull: not yet; nothing was taken.
            ValueError: the inputs are not what the program takes.
            MemoryError: its outputs fit no arena.
        """
        rows = sum(self.run.rows) if self._program.batched else 1
        sources = _sources(self.run, self._program, staged or arenas, rows)
        targets = self._targets(arenas, rows)
        self.sequence = sequence
        try:
            self._turn = self._program.launch(sequence, rows, sources, targets)
        except BaseException:
            self.undo()
            raise
        self._launched = perf_counter()

    def undo(self) -> None:
        """Give back what was taken: nothing refers to it."""
        while self._taken:
            self._blocks.give_back(self._taken.pop())

    def answer(self) -> BatchResult:
        """Its outputs, now that it has ended."""
        ended = perf_counter()
        run, program = self.run, self._program
        rows = sum(run.rows)
        arena = self._blocks.arena.number
        outputs = tuple(
            BatchOutput(
                slot.name,
                slot.datatype,
                (rows, *slot.dims) if program.batched else slot.dims,
                arena,
                offset,
                slot.row_bytes,
                (),
            )
            for slot, offset in zip(program.outputs, self._taken, strict=True)
            if not run.wanted or slot.name in run.wanted
        )
        self._blocks.hold(run.batch, self._taken)
        began_ns, ended_ns = program.times_ns(self._turn)
        return BatchResult(
            run.batch,
            outputs,
            program.batched,
            bool(self._taken),
            (self._launched - self._began) * 1e3,
            (ended_ns - began_ns) / 1e6,
            (perf_counter() - ended) * 1e3,
            began_ns,
            ended_ns,
            program.rows,
        )

    def _targets(self, arenas: RegisteredArenas, rows: int) -> list[int]:
        targets: list[int] = []
        number = self._blocks.arena.number
        for slot in self._program.outputs:
            nbytes = slot.row_bytes * rows
            try:
                offset = self._blocks.take_now(nbytes)
            except MemoryError:
                self.undo()
                raise
            if offset is None:
                self.undo()
                raise OutputMemoryFull(self._blocks.shortage(nbytes))
            self._taken.append(offset)
            targets.append(arenas.address(Span(number, offset, nbytes)))
        return targets


def _sources(
    run: RunBatch,
    program: BatchProgram,
    where: RegisteredArenas | Mapping[str, Sequence[int]],
    rows: int,
) -> list[Sequence[int]]:
    if not program.batched and len(run.rows) > 1:
        raise ValueError(f"{len(run.rows)} requests for a model that takes one at a time")
    columns = {column.name: column for column in run.columns}
    found: list[Sequence[int]] = []
    for slot in program.inputs:
        column = _named(columns, slot)
        dims = column.dims[1:] if program.batched else column.dims
        if dims != slot.dims:
            raise ValueError(
                f"input '{slot.name}' has rows of shape {list(dims)}, not {list(slot.dims)}"
            )
        if isinstance(where, RegisteredArenas):
            found.append(_addresses(column, slot, where, rows))
        else:
            found.append(where[slot.name])
    return found


def _named(columns: dict[str, Column], slot: TensorSlot) -> Column:
    column = columns.get(slot.name)
    if column is None:
        raise ValueError(f"no input '{slot.name}' among {sorted(columns)}")
    return column


def _addresses(column: Column, slot: TensorSlot, arenas: RegisteredArenas, rows: int) -> list[int]:
    if sum(column.sizes) != rows * slot.row_bytes:
        raise ValueError(
            f"input '{slot.name}' of {rows} rows of shape {list(slot.dims)} needs "
            f"{rows * slot.row_bytes} bytes, the requests brought {sum(column.sizes)}"
        )
    found: list[int] = []
    for arena, offset, nbytes in zip(column.arenas, column.offsets, column.sizes, strict=True):
        first = arenas.address(Span(arena, offset, nbytes))
        count = nbytes // slot.row_bytes if slot.row_bytes else rows - len(found)
        found += row_addresses(first, count, slot.row_bytes)
    return found


#: Batches of a partition on the GPU: one runs, one is launched behind it.
DEPTH: Final = 2


class RefusedBatch(NamedTuple):
    """A batch that was not launched, and its answer, which comes after those asked for before."""

    asked: GpuRequest
    answer: Failed


class WaitingBatch(NamedTuple):
    """A batch that has not begun, and the model as it was loaded when the batch came."""

    asked: GpuRequest
    run: RunBatch
    served: LoadedModel


class PartitionChange(NamedTuple):
    """A piece of work other than a batch."""

    line: str
    what: LoadModel | UnloadModel | ReleaseLane


class GpuPartition:
    """Batches run one after the other; changes are made one at a time, beside them where they can.

    ``flights`` are launched, or refused while others of them were; answers are given in that order.
    ``changing`` is true while a change is under way. ``patient_until_s`` is when the first batch
    gives up waiting for output memory; ``None`` if it does not wait.
    """

    def __init__(self, name: str, lane: Lane) -> None:
        self.name = name
        self.lane = lane
        self.models: dict[str, LoadedModel] = {}
        self.batches: deque[WaitingBatch] = deque()
        self.flights: deque[InFlightBatch | RefusedBatch] = deque()
        self.changes: deque[PartitionChange] = deque()
        self.changing = False
        self.patient_until_s: float | None = None

    def busy_with(self, key: str | None = None) -> bool:
        """Whether batches (of one model, if it is named) are in flight or wait."""
        runs = [waiting.run for waiting in self.batches]
        runs += [flight.run for flight in self.launched]
        return any(key is None or run.model == key for run in runs)

    @property
    def launched(self) -> list[InFlightBatch]:
        """What is on the GPU, in order."""
        return [one for one in self.flights if isinstance(one, InFlightBatch)]


#: The partition, the line, the answer, and whether the partition is gone.
OnChanged = Callable[[GpuPartition, str, GpuAnswer, bool], None]


class PartitionChanges:
    """Makes the changes of a partition in the order asked for, one at a time."""

    def __init__(
        self, context: GpuContext, changed: OnChanged, answer: Callable[[Answers], None]
    ) -> None:
        """``answer`` gets the answers of fetches that end with their model."""
        self._context = context
        self._answer = answer
        self._models = context.models
        self._loader = context.loader
        self._changed = changed

    def begin(self, partition: GpuPartition) -> None:
        """Begin the next change, if its time has come."""
        while partition.changes and not partition.changing:
            change = partition.changes[0]
            match change.what:
                case LoadModel():
                    self._load(partition, change, change.what)
                case UnloadModel(model=key):
                    if partition.busy_with(key):
                        return  # its batches go first
                    self._unload(partition, change, key)
                case ReleaseLane():
                    if partition.busy_with():
                        return
                    self._release(partition, change)

    def _load(self, partition: GpuPartition, change: PartitionChange, load: LoadModel) -> None:
        model = load.model
        if model.key in partition.models:
            self._end(partition, change, Failed(f"model {model.key} is already loaded here"))
            return
        there = (model, partition.name, partition.lane, load.batches, load.cold)
        served = self._models.at_once(*there)
        if served is not None:
            self._loaded(partition, change, load, served)
            return
        job = partial(self._models.load, *there)
        self._aside(partition, job, partial(self._loaded, partition, change, load))

    def _loaded(
        self,
        partition: GpuPartition,
        change: PartitionChange,
        load: LoadModel,
        result: LoadedModel | BaseException,
    ) -> None:
        model = load.model
        if isinstance(result, BaseException):
            what = f"model {model.name} does not load"
            self._end(partition, change, Failed(error_text(what, result)))
            return
        partition.models[model.key] = result
        answer = Loaded(model.key, result.signature, result.resident_bytes)
        self._end(partition, change, answer)

    def _unload(self, partition: GpuPartition, change: PartitionChange, key: str) -> None:
        served = partition.models.pop(key, None)
        ended = partial(self._end, partition, change, Unloaded(key))
        if not self._models.leave(key, partition.name):
            ended()
            return
        self._forget(key, served)

        def dropped(result: object) -> None:
            if isinstance(result, BaseException):
                what = f"model {key} was unloaded, but not all of its memory came back"
                self._context.note(error_text(what, result))
            ended()

        self._aside(partition, partial(self._models.drop, key), dropped)

    def _forget(self, key: str, served: LoadedModel | None) -> None:
        weights = None if served is None else served.cold
        self._answer(self._context.fetcher.forget(key, weights))

    def _release(self, partition: GpuPartition, change: PartitionChange) -> None:
        models, partition.models = partition.models, {}
        orphans = [key for key in models if self._models.leave(key, partition.name)]
        for key in orphans:
            self._forget(key, models[key])
        if orphans:
            self._aside(
                partition,
                partial(self._drop_all, orphans),
                lambda result: self._released(partition, change),
            )
        else:
            self._released(partition, change)

    def _drop_all(self, keys: list[str]) -> None:
        for key in keys:
            self._models.drop(key)

    def _released(self, partition: GpuPartition, change: PartitionChange) -> None:
        self._context.lanes.release(partition.name)
        self._end(partition, change, Released(), gone=True)

    def _aside(
        self, partition: GpuPartition, job: Callable[[], Any], ended: Callable[[Any], None]
    ) -> None:
        """Do a job in the loader's thread. A GPU that fails there has failed for all."""
        partition.changing = True

        def heard(result: Any) -> None:
            if isinstance(result, CudaError) and result.sticky:
                raise result
            partition.changing = False
            ended(result)
            self.begin(partition)

        self._loader.submit(job, heard)

    def _end(
        self,
        partition: GpuPartition,
        change: PartitionChange,
        answer: GpuAnswer,
        gone: bool = False,
    ) -> None:
        assert partition.changes.popleft() is change
        self._changed(partition, change.line, answer, gone)
