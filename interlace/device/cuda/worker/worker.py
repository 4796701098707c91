"""Main loop of the process that holds a GPU: frames in, launches, ends of batches, answers out."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from itertools import count
from typing import Final

from interlace.device.blocks import Blocks
from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.worker.changes import Changes
from interlace.device.cuda.worker.equipment import Equipment
from interlace.device.cuda.worker.flight import Flight, Full
from interlace.device.cuda.worker.partition import Change, Partition, Waiting
from interlace.device.cuda.worker.wire import (
    Answered,
    Asked,
    Broken,
    Carved,
    CarveLane,
    ForgetInputs,
    FromGpu,
    GpuAnswer,
    ReleaseLane,
    Staged,
    StageInputs,
    ToGpu,
)
from interlace.device.cuda.worker.words import told
from interlace.device.wire import (
    Failed,
    FreeBatches,
    LoadModel,
    RunBatch,
    Starved,
    UnloadModel,
)
from interlace.shm.frames import BlockingFrames

#: How often a GPU that works is asked whether it still does: a flag tells no error.
_CHECK_S: Final = 0.25


class Worker:
    """Carries out what frames ask for, on all partitions beside each other.

    Nothing here blocks: what takes time is done by the loader's thread, and a batch that finds no
    output memory waits without holding up other partitions.
    """

    def __init__(
        self,
        frames: BlockingFrames[FromGpu, ToGpu],
        equipment: Equipment,
        patience_s: float,
    ) -> None:
        self._frames = frames
        self._equipment = equipment
        self._patience_s = patience_s
        self._blocks = Blocks(equipment.outputs, lambda: False)
        self._partitions: dict[str, Partition] = {}
        self._sequences = count(1)
        self._changes = Changes(equipment, self._changed)
        self._checked_s = time.monotonic()
        self._open = True
        self._selector = selectors.DefaultSelector()
        for source, heard in self._sources().items():
            self._selector.register(source, selectors.EVENT_READ, heard)

    def serve(self) -> None:
        """Until the other end is closed.

        Raises:
            CudaError: the GPU failed, and the process must end; the other end was told.
        """
        try:
            while self._open:
                for key, _ in self._selector.select(self._timeout_s()):
                    key.data()
                self._look()
        except CudaError as error:
            flights = [one.flight for one in self._partitions.values() if one.flight is not None]
            self._frames.send(Broken(str(error), tuple(flight.run.batch for flight in flights)))
            raise

    @property
    def in_flight(self) -> bool:
        """Whether the GPU works on a batch, or on inputs."""
        flying = any(one.flight is not None for one in self._partitions.values())
        return flying or self._equipment.stager.busy

    def _sources(self) -> dict[int, Callable[[], None]]:
        return {
            self._frames.fileno(): self._read,
            self._equipment.completions.fileno(): self._ended,
            self._equipment.loader.fileno(): self._equipment.loader.drain,
        }

    # -------------------------------------------------------------------------------- frames
    def _read(self) -> None:
        frame = self._frames.receive()
        match frame:
            case None:
                self._open = False
            case FreeBatches(batches=batches):
                self._free(batches)
            case Asked():
                self._asked(frame)
            case ForgetInputs(model=model):
                self._equipment.stager.forget(model)
            case _:
                raise ValueError(f"a {type(frame).__name__} frame is not expected here")

    def _asked(self, asked: Asked) -> None:
        line, name = asked.line, asked.partition
        match asked.what:
            case RunBatch() as run:
                self._run(asked, run)
            case StageInputs() as stage:
                self._stage(line, stage)
            case CarveLane() as what:
                self._answer(line, self._carve(name, what))
            case LoadModel() | UnloadModel() | ReleaseLane() as what:
                self._change(name, Change(line, what))

    def _stage(self, line: str, stage: StageInputs) -> None:
        try:
            self._equipment.stager.begin(line, stage)
        except (CudaError, ValueError) as error:
            if isinstance(error, CudaError) and error.sticky:
                raise
            self._answer(line, Failed(f"inputs could not be staged: {error}"))

    def _run(self, asked: Asked, run: RunBatch) -> None:
        if run.freed:
            self._free(run.freed)
        line, name = asked.line, asked.partition
        partition = self._partitions.get(name)
        if partition is None:
            self._answer(line, Failed(f"no partition '{name}' here"))
            return
        served = partition.models.get(run.model)
        if served is None:
            self._answer(line, Failed(f"model {run.model} is not loaded here"))
            return
        partition.batches.append(Waiting(asked, run, served))
        self._advance(partition)

    def _carve(self, name: str, what: CarveLane) -> GpuAnswer:
        try:
            lane = self._equipment.lanes.carve(name, what.share_pct)
        except (CudaError, ValueError) as error:
            if isinstance(error, CudaError) and error.sticky:
                raise
            return Failed(str(error))
        self._partitions[name] = Partition(name, lane)
        return Carved(lane.units)

    def _change(self, name: str, change: Change) -> None:
        partition = self._partitions.get(name)
        if partition is None:
            self._answer(change.line, Failed(f"no partition '{name}' here"))
            return
        partition.changes.append(change)
        self._changes.begin(partition)

    def _changed(self, partition: Partition, line: str, answer: GpuAnswer, gone: bool) -> None:
        if gone:
            del self._partitions[partition.name]
        self._answer(line, answer)

    def _free(self, batches: tuple[int, ...]) -> None:
        self._blocks.free(batches)
        for partition in self._partitions.values():
            if partition.patient_until_s is not None:
                self._advance(partition)

    def _answer(self, line: str, answer: GpuAnswer) -> None:
        self._frames.send(Answered(line, answer))

    # ------------------------------------------------------------------------------- batches
    def _advance(self, partition: Partition) -> None:
        """Begin the first batch that waits, if the partition is free for it."""
        while partition.flight is None and partition.batches:
            waiting = partition.batches[0]
            try:
                partition.flight = self._launch(partition, waiting)
            except Full as full:
                if not self._wait(partition):
                    return
                self._fail(partition, f"{full}")
                continue
            except (Exception, SystemExit) as error:
                if isinstance(error, CudaError) and error.sticky:
                    raise
                run = waiting.run
                self._fail(partition, told(f"model {run.model} failed on batch {run.batch}", error))
                continue
            partition.batches.popleft()
            partition.patient_until_s = None
        if not partition.batches:
            self._changes.begin(partition)

    def _launch(self, partition: Partition, waiting: Waiting) -> Flight:
        run, lane = waiting.run, partition.lane
        rows = max(sum(run.rows), run.padded_rows)
        dims = {column.name: column.dims for column in run.columns}
        program = waiting.served.program(lane, rows, dims)
        flight = Flight(waiting.asked, run, program, self._blocks)
        slot, stager = waiting.asked.slot, self._equipment.stager
        staged = stager.rows(run, slot) if slot >= 0 else {}
        try:
            flight.launch(self._equipment.arenas, staged, next(self._sequences))
        except BaseException:
            self._left(waiting.asked, run)
            raise
        self._equipment.completions.submitted(lane.index, flight.sequence, lane.stream)
        return flight

    def _left(self, asked: Asked, run: RunBatch) -> None:
        """A batch reads its staged inputs no more."""
        if asked.slot >= 0:
            self._equipment.stager.left(run, asked.slot)

    def _ended(self) -> None:
        by_lane = {one.lane.index: one for one in self._partitions.values()}
        stager = self._equipment.stager
        for index, sequence in self._equipment.completions.drain():
            if index == stager.lane.index:
                for line in stager.ended(sequence):
                    self._answer(line, Staged())
                continue
            partition = by_lane.get(index)
            flight = None if partition is None else partition.flight
            if partition is None or flight is None or flight.sequence != sequence:
                continue
            partition.flight = None
            self._left(flight.asked, flight.run)
            self._answer(flight.asked.line, flight.answer())
            self._advance(partition)

    def _fail(self, partition: Partition, detail: str) -> None:
        waiting = partition.batches.popleft()
        partition.patient_until_s = None
        self._answer(waiting.asked.line, Failed(detail))

    # ------------------------------------------------------------------------------ patience
    def _wait(self, partition: Partition) -> bool:
        """Have the first batch wait for output memory; true if it has waited enough."""
        now_s = time.monotonic()
        if partition.patient_until_s is None:
            partition.patient_until_s = now_s + self._patience_s
            self._frames.send(Starved())
        return now_s >= partition.patient_until_s

    def _timeout_s(self) -> float | None:
        until = [
            one.patient_until_s
            for one in self._partitions.values()
            if one.patient_until_s is not None
        ]
        if self.in_flight or not self._equipment.loader.idle:
            until.append(self._checked_s + _CHECK_S)
        return max(0.0, min(until) - time.monotonic()) if until else None

    def _look(self) -> None:
        """What time brings: batches that have waited enough, a GPU that failed."""
        now_s = time.monotonic()
        for partition in self._partitions.values():
            if partition.patient_until_s is not None and now_s >= partition.patient_until_s:
                self._advance(partition)
        if self.in_flight and now_s - self._checked_s >= _CHECK_S:
            self._equipment.completions.check()
            self._checked_s = now_s
