"""A device driven from outside the engine, one piece of work at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count

from interlace.core.messages import (
    CreatePartition,
    Load,
    PartitionWork,
    ReleasePartition,
    Run,
    Unload,
    WorkFinished,
)
from interlace.core.model import Model
from interlace.core.request import Batch
from interlace.device.base import Device
from interlace.runtime.clock import Clock
from interlace.shm.arena import Arena

#: Far above what an engine counts to: a running server profiles beside its own batches.
FIRST_ID = 1 << 40


class MeasureError(Exception):
    """A model that could not be measured: which, doing what, and what the device said."""


class PartitionLostError(MeasureError):
    """The partition is gone, and the work with it."""


@dataclass(frozen=True, slots=True)
class TimedWork:
    """A finished piece of work and the time from command to completion."""

    finished: WorkFinished
    took_ms: float


class Rig:
    """One device with the clock and the arena that its requests live in.

    Partitions are carved on first use and kept until ``close``: a worker process starts in
    seconds, and an idle one disturbs nobody.
    """

    def __init__(self, device: Device, clock: Clock, arena: Arena) -> None:
        self.device = device
        self.clock = clock
        self.arena = arena
        self.gpu = device.gpu
        self._ids = count(FIRST_ID)
        self._partitions: dict[int, str] = {}

    def next_id(self) -> int:
        return next(self._ids)

    async def partition(self, share_pct: int, timeout_s: float) -> str:
        """The partition of that share, carved now if it is not there.

        Raises:
            MeasureError: the device refused it even with nothing else carved.
        """
        if share_pct in self._partitions:
            return self._partitions[share_pct]
        name = f"profile-{share_pct}-{self.next_id()}"
        work = CreatePartition(self.gpu.id, name, share_pct)
        try:
            await self.do(work, timeout_s)
        except MeasureError:
            if not self._partitions:
                raise
            await self.close(timeout_s)  # no room beside the others
            await self.do(work, timeout_s)
        self._partitions[share_pct] = name
        return name

    def has(self, partition: str) -> bool:
        """Whether a partition carved here is still there."""
        return partition in self._partitions.values()

    async def load(
        self, partition: str, model: Model, batches: tuple[int, ...], timeout_s: float
    ) -> TimedWork:
        work = Load(self.gpu.id, partition, model.key, batches)
        return await self.do(work, timeout_s)

    async def unload(self, partition: str, model: Model, timeout_s: float) -> None:
        await self.do(Unload(self.gpu.id, partition, model.key), timeout_s)

    async def run(self, partition: str, batch: Batch, timeout_s: float) -> TimedWork:
        """Execute a batch and give its output memory back."""
        work = Run(self.gpu.id, partition, batch, timeout_s * 1000.0)
        done = await self.do(work, timeout_s)
        self.device.free(batch.id)
        return done

    async def do(self, work: PartitionWork, timeout_s: float) -> TimedWork:
        """Give the device one piece of work and wait for it.

        Raises:
            DeviceLost: its partition died, or had to be given up after ``timeout_s``.
            MeasureError: it failed.
        """
        ended: asyncio.Future[TimedWork] = asyncio.get_running_loop().create_future()
        started_ms = self.clock.now_ms()

        def on_finished(finished: WorkFinished) -> None:
            if not ended.done():
                ended.set_result(TimedWork(finished, self.clock.now_ms() - started_ms))

        self.device.do(work, on_finished)
        what = type(work).__name__.lower()
        try:
            done = await asyncio.wait_for(ended, timeout_s)
        except TimeoutError:
            self._drop(work.partition)
            self.device.do(ReleasePartition(self.gpu.id, work.partition), lambda finished: None)
            raise PartitionLostError(f"{what} did not end within {timeout_s:g} s") from None
        failure = done.finished.failure
        if failure is None:
            return done
        if failure.fatal:
            self._drop(work.partition)
            raise PartitionLostError(f"{what} failed: {failure.detail}")
        raise MeasureError(f"{what} failed: {failure.detail}")

    def _drop(self, partition: str) -> None:
        self._partitions = {
            share: name for share, name in self._partitions.items() if name != partition
        }

    async def close(self, timeout_s: float = 30.0) -> None:
        """Release every partition carved here."""
        partitions, self._partitions = self._partitions, {}
        for name in partitions.values():
            try:
                await self.do(ReleasePartition(self.gpu.id, name), timeout_s)
            except MeasureError:
                continue  # it is gone either way
