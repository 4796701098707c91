"""Models run side by side, each in a partition of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import TypeVar

from interlace.core.messages import CreatePartition, Load, ReleasePartition
from interlace.perf.interference import CoRunner
from interlace.profiling.corun import CoRun, CoRunModel, Interval, coruns_from, pairs, triples
from interlace.profiling.rig import MeasureError, Rig
from interlace.profiling.samples import SampleInputs

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

    def __init__(self, rig: Rig, share_pct: int, count: int) -> None:
        self._rig = rig
        self._share_pct = share_pct
        self._names = [f"corun-{rig.next_id()}" for _ in range(count)]
        self._loaded: set[tuple[str, str]] = set()
        self._carved: list[str] = []

    async def __aenter__(self) -> CoRunPartitions:
        await self._rig.close()  # partitions of the sweep would stand in the way
        try:
            for name in self._names:
                await self._rig.do(
                    CreatePartition(self._rig.gpu.id, name, self._share_pct), _TIMEOUT_S
                )
                self._carved.append(name)
        except MeasureError:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        for name in self._carved:
            try:
                await self._rig.do(ReleasePartition(self._rig.gpu.id, name), _TIMEOUT_S)
            except MeasureError:
                continue  # it is gone either way

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
    async with CoRunPartitions(rig, share_pct, count) as stalls:
        for group in groups:
            yield await stalls.measure(group, seconds)
