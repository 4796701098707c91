"""A device driven from outside the engine: one piece of work at a time, or models side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

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
from interlace.perf.interference import CoRunner
from interlace.profiling.corun import CoRun, CoRunModel, Interval, coruns_from, pairs, triples
from interlace.profiling.samples import SampleInputs
from interlace.runtime.clock import Clock
from interlace.shm.arena import Arena

#: Far above what an engine counts to: a running server profiles beside its own batches.
FIRST_ID = 1 << 40


class MeasureError(Exception):
    """A model that could not be measured: which, doing what, and what the device said."""


class PartitionLostError(MeasureError):
    """The partition is gone, and the work with it."""


class HangError(PartitionLostError):
    """The work did not end in its time, and the partition was given up."""


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
        #: Waited for before each point, if set; partitions then yield to those that serve.
        self.idle: Callable[[], Awaitable[None]] | None = None
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
        yields = self.idle is not None
        work = CreatePartition(self.gpu.id, name, share_pct, background=yields, quiet=True)
        try:
            await self.do(work, timeout_s)
        except MeasureError:
            if not self._partitions:
                raise
            await self.close(timeout_s)  # no room beside the others
            await self.do(work, timeout_s)
        self._partitions[share_pct] = name
        return name

    @property
    def carved(self) -> bool:
        """Whether any partition is."""
        return bool(self._partitions)

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
            PartitionLostError: its partition died; HangError, was given up after ``timeout_s``.
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
            # In Python 3.11 ``wait_for`` loses a cancellation in the turn in which ``ended`` ends.
            async with asyncio.timeout(timeout_s):
                done = await ended
        except TimeoutError:
            self._drop(work.partition)
            self.device.do(ReleasePartition(self.gpu.id, work.partition), lambda finished: None)
            raise HangError(f"{what} did not end within {timeout_s:g} s") from None
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
        await self.release(partitions.values(), timeout_s)

    async def release(self, partitions: Iterable[str], timeout_s: float) -> None:
        """Release these partitions."""
        for name in partitions:
            try:
                await self.do(ReleasePartition(self.gpu.id, name), timeout_s)
            except MeasureError:
                continue  # it is gone either way


T = TypeVar("T")


async def at_once(works: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """The results of all; when one fails, the others are given up and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def keep_busy(
    rig: Rig, partition: str, inputs: SampleInputs, rows: int, seconds: float
) -> list[Interval]:
    """Run batches of ``rows`` for ``seconds``; every execution in order of its end.

    The model is loaded there.

    Raises:
        MeasureError: a batch failed.
    """
    until_ms = rig.clock.now_ms() + seconds * 1000.0
    seen: list[Interval] = []
    while rig.clock.now_ms() < until_ms:
        began_ms = rig.clock.now_ms()
        await rig.run(partition, inputs.batch(rig.next_id(), rows), _RUN_S)
        seen.append(Interval(began_ms, rig.clock.now_ms()))
    return seen


_TIMEOUT_S = 120.0
_RUN_S = 60.0


class CoRunPartitions:
    """Partitions of one share side by side, with what was loaded into each so far."""

    def __init__(self, rig: Rig, share_pct: int) -> None:
        self._rig = rig
        self._share_pct = share_pct
        self._names: list[str] = []
        self._loaded: set[tuple[str, str]] = set()

    async def carve(self) -> None:
        """One more of them. Raises MeasureError if the device refuses it."""
        name = f"corun-{self._rig.next_id()}"
        work = CreatePartition(self._rig.gpu.id, name, self._share_pct, quiet=True)
        await self._rig.do(work, _TIMEOUT_S)
        self._names.append(name)

    async def close(self) -> None:
        """Release all of them."""
        await self._rig.release(self._names, _TIMEOUT_S)

    async def measure(self, members: Sequence[CoRunModel], seconds: float) -> list[CoRun]:
        """Each alone for half of ``seconds``, in turn, then all of them for ``seconds``.

        Raises:
            MeasureError: a model does not load or fails.
        """
        inputs = [SampleInputs(member.model, self._rig.arena) for member in members]
        try:
            for name, member in zip(self._names, members, strict=True):
                await self._load(name, member)
            places = list(zip(self._names, members, inputs, strict=True))
            alone = [await self._run(*place, seconds / 2) for place in places]
            beside = await at_once(self._run(*place, seconds) for place in places)
        finally:
            for one in inputs:
                one.release()
        runners = [CoRunner(member.model.name, member.batch, self._share_pct) for member in members]
        return coruns_from(runners, alone, beside)

    async def _load(self, partition: str, member: CoRunModel) -> None:
        key = member.model.key
        if (partition, key) not in self._loaded:
            work = Load(self._rig.gpu.id, partition, key, (member.batch,))
            await self._rig.do(work, _TIMEOUT_S)
            self._loaded.add((partition, key))

    async def _run(
        self, partition: str, member: CoRunModel, inputs: SampleInputs, seconds: float
    ) -> list[Interval]:
        await self._rig.run(partition, inputs.batch(self._rig.next_id(), member.batch), _TIMEOUT_S)
        return await keep_busy(self._rig, partition, inputs, member.batch, seconds)


async def measure_coruns(
    rig: Rig, members: Sequence[CoRunModel], share_pct: int, count: int, seconds: float = 0.5
) -> AsyncIterator[list[CoRun]]:
    """All pairs (``count`` 2) or the chosen triples (3) of models, each in a share of that size.

    Raises:
        MeasureError: a partition cannot be had, or a model does not load or fails.
    """
    groups = pairs(members) if count == 2 else triples(members)
    await rig.close()  # partitions of the sweep would stand in the way
    stalls = CoRunPartitions(rig, share_pct)
    try:
        for _ in range(count):
            await stalls.carve()
        for group in groups:
            yield await stalls.measure(group, seconds)
    finally:
        await stalls.close()
