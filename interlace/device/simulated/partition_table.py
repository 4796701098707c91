"""Which partitions a simulated accelerator has, what they hold, and whether there is room."""

from __future__ import annotations

from collections import Counter

from interlace.core.hardware import Gpu
from interlace.core.messages import (
    CreatePartition,
    Load,
    PartitionWork,
    ReleasePartition,
    Run,
    Unload,
    WorkFinished,
)
from interlace.core.profile import Profiles
from interlace.core.request import Timing
from interlace.device.base import Done
from interlace.device.simulated.physics import MechanismCosts
from interlace.perf.memory import needed_bytes, room_bytes


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


class PartitionTable:
    """Partitions and models after all that was asked for, done or not."""

    def __init__(self, gpu: Gpu, truth: Profiles) -> None:
        self._gpu = gpu
        self._truth = truth
        self.shares: dict[str, int] = {}
        self._loaded: dict[str, set[str]] = {}
        self.units: dict[str, tuple[int, ...]] = {}

    def has(self, partition: str, model: str) -> bool:
        """True if the model is loaded there, or will be before what is asked for now begins."""
        return model in self._loaded.get(partition, ())

    def refusal(self, work: PartitionWork) -> str | None:
        """Why this work is impossible, ``None`` if it is not."""
        name, gpu = work.partition, self._gpu
        if isinstance(work, CreatePartition):
            if name in self.shares:
                return f"partition '{name}' of {gpu.id} exists already"
            if work.share_pct not in gpu.shares_pct:
                return f"a share of {work.share_pct} %: expected one of {gpu.shares_pct}"
            return None
        if name not in self._loaded:
            return f"no partition '{name}' on {gpu.id}"
        match work:
            case Load(model=model) if model not in self._truth:
                return f"{model} has no profile here"
            case Load(model=model):
                return self._crowded(name, model)
            case Run(batch=batch) if not self.has(name, batch.model):
                return f"model {batch.model} is not loaded in partition '{name}'"
        return None

    def enter(self, work: PartitionWork) -> None:
        """Take note of work that begins some time."""
        name = work.partition
        match work:
            case CreatePartition(share_pct=share_pct):
                self.units[name] = self._placed(share_pct)
                self.shares[name] = share_pct
                self._loaded[name] = set()
            case Load(model=model):
                self._loaded[name].add(model)
            case Unload(model=model):
                self._loaded[name].discard(model)
            case ReleasePartition():
                del self._loaded[name]
                self.units.pop(name, None)

    def undo(self, work: PartitionWork) -> None:
        """That work failed: what it would have made is not there."""
        match work:
            case CreatePartition(partition=name):
                self.forget(name)
            case Load(partition=name, model=model):
                self._loaded[name].discard(model)

    def forget(self, name: str) -> None:
        self.shares.pop(name, None)
        self._loaded.pop(name, None)
        self.units.pop(name, None)

    def clear(self) -> None:
        self.shares.clear()
        self._loaded.clear()
        self.units.clear()

    def _placed(self, share_pct: int) -> tuple[int, ...]:
        """Units of a share: those of the blocks that the fewest partitions have, if it has blocks.

        Without blocks only their number says something.
        """
        gpu, (count, size) = self._gpu, self._gpu.blocks
        if not count or share_pct == 100:
            return tuple(range(max(1, gpu.units * share_pct // 100)))
        held = Counter(unit for units in self.units.values() for unit in units)
        blocks = sorted(range(count), key=lambda block: (held[block * size], block))
        chosen = sorted(blocks[: gpu.taken(share_pct)])
        return tuple(block * size + unit for block in chosen for unit in range(size))

    def _crowded(self, partition: str, model: str) -> str | None:
        """Why the model finds no room beside what is held; weights count as in plans."""
        if model in self._loaded[partition]:
            return None
        walls = dict(self._gpu.walls)
        limit = walls.get(self.shares[partition], room_bytes(self._gpu))
        if self.shares[partition] in walls:
            held = list(self._loaded[partition])
        else:
            there = [name for name in self._loaded if self.shares[name] not in walls]
            held = [one for name in there for one in self._loaded[name]]
        taken = needed_bytes(held, self._truth, self._gpu)
        needed = needed_bytes([*held, model], self._truth, self._gpu) - taken
        if needed <= limit - taken:
            return None
        return (
            f"no memory for {model} in partition '{partition}' of {self._gpu.id}: it needs "
            f"{needed} bytes, and {limit - taken} of {limit} are free"
        )
