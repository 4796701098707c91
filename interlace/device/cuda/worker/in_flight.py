"""One batch on its way through the GPU: references in, a launch, references out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from interlace.core.tensor import Span
from interlace.device.cuda.graphs.program import BatchProgram, TensorSlot
from interlace.device.cuda.memory.parameters import row_addresses
from interlace.device.cuda.memory.registered import RegisteredArenas
from interlace.device.cuda.worker.wire import GpuRequest
from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import BatchOutput, BatchResult, Column, RunBatch


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
            Full: not yet; nothing was taken.
            ValueError: the inputs are not what the program takes.
            MemoryError: its outputs fit no arena.
            CudaError: the launch was refused.
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
