"""One partition in the process that holds the GPU: its batches in order, its changes in order."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from interlace.device.cuda.lanes import Lane
from interlace.device.cuda.models.loaded import LoadedModel
from interlace.device.cuda.worker.in_flight import InFlightBatch
from interlace.device.cuda.worker.wire import GpuRequest, ReleaseLane
from interlace.device.process.wire import Failed, LoadModel, RunBatch, UnloadModel

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
