"""The one contract of every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from interlace.core.hardware import Gpu
from interlace.core.messages import PartitionLost, TierChanged, Work, WorkFinished
from interlace.core.model import Model

Done = Callable[[WorkFinished], None]
#: What a device tells unasked.
DeviceEvent = PartitionLost | TierChanged


class Registers(Protocol):
    """What knows models by deployment key: a device, or several."""

    def register(self, model: Model) -> None:
        """Make a deployment key known, before any ``Load`` of it."""

    def forget(self, key: str) -> None:
        """Drop what ``register`` kept; the model is loaded nowhere."""


class Device(Registers, Protocol):
    """An accelerator that carries out work.

    ``do`` returns at once, calls ``done`` exactly once for that piece of work, later (never inside
    ``do``) and on the runtime's thread, and never raises: a failure is a ``WorkFinished`` with
    ``failure``. Work of one partition starts in the order given, and its batches end in that order;
    where ``gpu.ahead_ms`` is not 0 a batch begins by itself when the one before it ends. When a
    partition dies, each piece of work it held is finished with a fatal failure, then ``on_event``
    hears of it once; partitions that share a process die together. What is held of a model's
    weights is forgotten when none of its partitions has the model loaded any more.
    """

    @property
    def gpu(self) -> Gpu: ...
    def do(self, work: Work, done: Done) -> None: ...
    def free(self, batch: int) -> None:
        """The replies of that batch are delivered: its output bytes may be reused."""

    def cancel_fetch(self, model: str) -> None:
        """Nobody waits for the model's fetch any more; it ends early, with a failure, or well."""

    def on_event(self, heard: Callable[[DeviceEvent], None]) -> None: ...
    def close(self) -> None:
        """Stop everything; what is unfinished finishes with a failure."""
