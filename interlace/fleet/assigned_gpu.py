"""An accelerator of a node, as the engine that plans for all nodes sees it."""

from __future__ import annotations

from collections.abc import Callable

from interlace.core.hardware import Gpu
from interlace.core.messages import CreatePartition, PartitionLost, Work, WorkFinished
from interlace.core.model import Model
from interlace.device.base import Done
from interlace.runtime.clock import Clock


class AssignedGpu:
    """Whatever is asked of it is done at once: the engine of its node carries plans out.

    So the partitions that stand here are those that its node is told to have.
    """

    def __init__(self, gpu: Gpu, clock: Clock) -> None:
        self.gpu = gpu
        self._clock = clock

    def register(self, model: Model) -> None:
        """Models are the node's."""

    def forget(self, key: str) -> None:
        """Models are the node's."""

    def do(self, work: Work, done: Done) -> None:
        """Report it done."""
        units = tuple(range(self.gpu.units)) if isinstance(work, CreatePartition) else ()
        self._clock.call_soon(lambda: done(WorkFinished(work, units=units)))

    def free(self, batch: int) -> None:
        """No batch runs here."""

    def cancel_fetch(self, model: str) -> None:
        """No fetch is under way here."""

    def on_event(self, lost: Callable[[PartitionLost], None]) -> None:
        """What a node loses it brings back itself."""

    def close(self) -> None:
        """Nothing is held."""
