"""Batches of all partitions: begun when they can, ended when the GPU says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count

from interlace.device.cuda.driver.api import CudaError
from interlace.device.cuda.worker.context import GpuContext
from interlace.device.cuda.worker.partition import (
    DEPTH,
    GpuPartition,
    InFlightBatch,
    OutputMemoryFull,
    RefusedBatch,
    WaitingBatch,
)
from interlace.device.cuda.worker.wire import GpuAnswer, GpuRequest
from interlace.device.process.error_text import batch_failure
from interlace.device.process.output_arena import OutputBlocks
from interlace.device.process.wire import Failed, RunBatch


class BatchRunner:
    """Runs batches: of a partition in order, of partitions beside each other.

    The next batch of a partition is launched behind the one that runs, so that the GPU begins it by
    itself.

    ``partitions`` is the worker's own. ``answer`` gets a line and what is answered in it;
    ``starved`` gets the line of a batch that begins to wait for output memory, ``idle`` a partition
    that has none left.
    """

    def __init__(
        self,
        context: GpuContext,
        partitions: Mapping[str, GpuPartition],
        patience_s: float,
        answer: Callable[[str, GpuAnswer], None],
        starved: Callable[[str], None],
        idle: Callable[[GpuPartition], None],
    ) -> None:
        self._context = context
        self._stager = context.stager
        self._partitions = partitions
        self._patience_s = patience_s
        self._answer = answer
        self._starved = starved
        self._idle = idle
        self._blocks = OutputBlocks(context.outputs, lambda frees: False)
        self._sequences = count(1)
        self._lonely = 0  #: batches that are to run alone, waiting or in flight
        self._launching = ""

    @property
    def in_flight(self) -> bool:
        """Whether the GPU works on any."""
        return any(one.flights for one in self._partitions.values())

    @property
    def lines(self) -> Iterator[str]:
        """The lines of what is in flight, or being launched."""
        for partition in self._partitions.values():
            yield from (flight.asked.line for flight in partition.launched)
        if self._launching:
            yield self._launching

    @property
    def patient_until_s(self) -> float | None:
        """When the first one that waits for memory has waited enough."""
        return min(
            (
                one.patient_until_s
                for one in self._partitions.values()
                if one.patient_until_s is not None
            ),
            default=None,
        )

    def run(self, partition: GpuPartition, waiting: WaitingBatch) -> None:
        """Take a batch."""
        self._lonely += waiting.asked.alone
        partition.batches.append(waiting)
        self.advance(partition)

    def free(self, batches: tuple[int, ...]) -> None:
        """Replies are delivered: batches that waited for their memory may go on."""
        self._blocks.free(batches)
        for partition in list(self._partitions.values()):
            if partition.patient_until_s is not None:
                self.advance(partition)

    def ended(self) -> None:
        """Answer what the GPU has ended, and go on."""
        by_lane = {one.lane.index: one for one in self._partitions.values()}
        for index, sequence in self._context.completions.drain():
            if index == self._stager.lane.index:
                for line, staged in self._stager.ended(sequence):
                    self._answer(line, staged)
                continue
            if index == self._context.fetcher.lane_index:
                for line, moved in self._context.fetcher.ended(sequence):
                    self._answer(line, moved)
                continue
            partition = by_lane.get(index)
            flight = partition.flights[0] if partition and partition.flights else None
            if partition and isinstance(flight, InFlightBatch) and flight.sequence == sequence:
                partition.flights.popleft()
                self._left(flight.asked, flight.run)
                self._answer(flight.asked.line, flight.answer())
                self._go_on(partition, flight.asked)

    def look(self) -> None:
        """Give up what has waited for memory long enough."""
        now_s = time.monotonic()
        for partition in list(self._partitions.values()):
            if partition.patient_until_s is not None and now_s >= partition.patient_until_s:
                self.advance(partition)

    def advance(self, partition: GpuPartition) -> None:
        """Launch the batches that wait, as far as the partition has room for them."""
        while len(partition.flights) < DEPTH and partition.batches:
            waiting = partition.batches[0]
            if self._lonely and not self._may_begin(waiting.asked):
                return
            try:
                partition.flights.append(self._launch(partition, waiting))
            except OutputMemoryFull as full:
                if not self._waited(partition):
                    return
                self._fail(partition, Failed(str(full)))
                continue
            except (Exception, SystemExit) as error:
                if isinstance(error, CudaError) and error.sticky:
                    raise
                format, runs = waiting.served.model.format, waiting.served.runs
                failed = batch_failure(waiting.run, error, format, runs)
                self._fail(partition, failed)
                continue
            waiting.served.answered()
            partition.batches.popleft()
            partition.patient_until_s = None
        if not partition.batches:
            self._idle(partition)

    # ---------------------------------------------------------------------------------- inside
    def _launch(self, partition: GpuPartition, waiting: WaitingBatch) -> InFlightBatch:
        run, lane, asked = waiting.run, partition.lane, waiting.asked
        self._launching = asked.line
        rows = max(sum(run.rows), run.padded_rows)
        dims = {column.name: column.dims for column in run.columns}
        program = waiting.served.program(lane, rows, dims)
        flight = InFlightBatch(asked, run, program, self._blocks)
        staged = self._stager.rows(run, asked.slot) if asked.slot >= 0 else {}
        try:
            flight.launch(self._context.arenas, staged, next(self._sequences))
            self._context.completions.submitted(lane.index, flight.sequence, lane.stream)
        except BaseException:
            self._left(asked, run)
            raise
        self._launching = ""
        return flight

    def _may_begin(self, asked: GpuRequest) -> bool:
        """False if it wants to be alone and is not, or another does."""
        flights = [flight for one in self._partitions.values() for flight in one.launched]
        if asked.alone:
            return not flights
        heads = [one.batches[0].asked for one in self._partitions.values() if one.batches]
        return not any(one.alone for one in (*heads, *(flight.asked for flight in flights)))

    def _go_on(self, partition: GpuPartition, asked: GpuRequest) -> None:
        """A batch is over: the next one of its partition may begin, or others that held back."""
        while partition.flights and isinstance(refused := partition.flights[0], RefusedBatch):
            partition.flights.popleft()
            self._answer(refused.asked.line, refused.answer)
        if partition.patient_until_s is not None:  # an answer in its line has ended its starving
            self._starved(partition.batches[0].asked.line)
        held_back = self._lonely > 0
        self._lonely -= asked.alone
        self.advance(partition)
        if held_back:
            for other in list(self._partitions.values()):
                self.advance(other)

    def _fail(self, partition: GpuPartition, failed: Failed) -> None:
        waiting = partition.batches.popleft()
        partition.patient_until_s = None
        self._launching = ""
        if partition.flights:
            partition.flights.append(RefusedBatch(waiting.asked, failed))
        else:
            self._answer(waiting.asked.line, failed)
        if waiting.asked.alone:
            self._go_on(partition, waiting.asked)

    def _waited(self, partition: GpuPartition) -> bool:
        """Have the first batch wait for output memory; true if it has waited enough."""
        self._launching = ""
        now_s = time.monotonic()
        if partition.patient_until_s is None:
            partition.patient_until_s = now_s + self._patience_s
            self._starved(partition.batches[0].asked.line)
        return now_s >= partition.patient_until_s

    def _left(self, asked: GpuRequest, run: RunBatch) -> None:
        """A batch reads its staged inputs no more."""
        if asked.slot >= 0:
            self._stager.left(run, asked.slot)
