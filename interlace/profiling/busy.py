"""A partition kept busy for a while: batches of one size, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TypeVar

from interlace.profiling.overlap import Interval
from interlace.profiling.rig import Rig
from interlace.profiling.sample_requests import SampleInputs

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
    rig: Rig,
    partition: str,
    inputs: SampleInputs,
    rows: int,
    seconds: float,
    depth: int = 1,
    timeout_s: float = 60.0,
) -> list[Interval]:
    """Run batches of ``rows`` for ``seconds``; every execution in order of its end.

    The model is loaded there. With a ``depth`` of 2 the next batch is handed over before the one
    before it ends, so that the GPU never waits for us; intervals then overlap.

    Raises:
        MeasureError: a batch failed.
    """
    until_ms = rig.clock.now_ms() + seconds * 1000.0
    seen: list[Interval] = []

    async def lane() -> None:
        while rig.clock.now_ms() < until_ms:
            began_ms = rig.clock.now_ms()
            await rig.run(partition, inputs.batch(rig.next_id(), rows), timeout_s)
            seen.append(Interval(began_ms, rig.clock.now_ms()))

    await at_once(lane() for _ in range(depth))
    return seen
