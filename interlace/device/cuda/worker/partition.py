"""One partition in the process that holds the GPU: its batches in order, its changes in order."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from interlace.device.cuda.partitions.lanes import Lane
from interlace.device.cuda.worker.flight import Flight
from interlace.device.cuda.worker.models import Served
from interlace.device.cuda.worker.wire import Asked, ReleaseLane
from interlace.device.wire import LoadModel, RunBatch, UnloadModel


class Waiting(NamedTuple):
    """A batch that has not begun, and the model as it was loaded when the batch came."""

    asked: Asked
    run: RunBatch
    served: Served


class Change(NamedTuple):
    """A piece of work other than a batch."""

    line: str
    what: LoadModel | UnloadModel | ReleaseLane


class Partition:
    """Batches run one at a time; changes are made one at a time, beside them where they can.

    ``changing`` is true while a change is under way. ``patient_until_s`` is when the first batch
    gives up waiting for output memory; ``None`` if it does not wait.
    """

    def __init__(self, name: str, lane: Lane) -> None:
        self.name = name
        self.lane = lane
        self.models: dict[str, Served] = {}
        self.batches: deque[Waiting] = deque()
        self.flight: Flight | None = None
        self.changes: deque[Change] = deque()
        self.changing = False
        self.patient_until_s: float | None = None

    def busy_with(self, key: str | None = None) -> bool:
        """Whether batches (of one model, if it is named) are in flight or wait."""
        runs = [waiting.run for waiting in self.batches]
        if self.flight is not None:
            runs.append(self.flight.run)
        return any(key is None or run.model == key for run in runs)
