"""Work in a simulated partition: how long it takes where nothing runs, and what it ends with."""

from __future__ import annotations

from interlace.core.messages import CreatePartition, Load, PartitionWork, Run, Unload, WorkFinished
from interlace.core.profile import Profiles
from interlace.core.request import Timing
from interlace.device.base import Done
from interlace.device.simulated.physics import MechanismCosts


class QueuedWork:
    """A piece of work that a partition was given, in order."""

    __slots__ = ("began_ms", "begun", "done", "ended_ms", "launched", "over", "work")

    def __init__(self, work: PartitionWork, done: Done) -> None:
        self.work = work
        self.done = done
        self.launched = False  #: by the host: of batches alone
        self.begun = False
        self.over = False  #: nothing of it is left in the partition; its end is not known yet
        self.began_ms = 0.0  #: its execution, of batches alone
        self.ended_ms = 0.0


def duration_ms(work: PartitionWork, costs: MechanismCosts, truth: Profiles) -> float:
    """How long work that is no batch takes."""
    match work:
        case CreatePartition():
            return costs.carve_ms
        case Load(model=model):
            return truth[model].load_ms
        case Unload():
            return costs.unload_ms
        case _:
            return costs.release_ms


def result_of(entry: QueuedWork, units: tuple[int, ...], truth: Profiles) -> WorkFinished:
    """What work that went well ends with, in a partition of these units."""
    work = entry.work
    match work:
        case Run(batch=batch):
            outputs = ((),) * len(batch.requests)
            began_ms, ended_ms = entry.began_ms, entry.ended_ms
            times_ns = round(began_ms * 1e6), round(ended_ms * 1e6)
            timing = Timing(0.0, 0.0, ended_ms - began_ms, 0.0, batch.rows, *times_ns)
            return WorkFinished(work, outputs, timing=timing)
        case Load(model=model):
            return WorkFinished(work, resident_bytes=truth[model].weights_bytes)
        case CreatePartition():
            return WorkFinished(work, units=units)
        case _:
            return WorkFinished(work)
