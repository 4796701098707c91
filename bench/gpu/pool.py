"""The input pool on and off: a full batch staged as its rows came, or gathered when it begins."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Opened, Stand
from bench.gpu.mechanisms.sides import Side, side, versus
from bench.gpu.rows import Row
from bench.gpu.sharing import cpu_s
from interlace.core.messages import (
    CopyInputs,
    CreatePartition,
    Load,
    ReleasePartition,
    WorkFinished,
)
from interlace.core.request import Batch, Request

_LIMIT_S: Final = 60.0
_NEVER_MS: Final = 1e12
_NAME: Final = "pool"
#: One window is read by a batch while the other is filled.
_WINDOWS: Final = 2
_WARM: Final = 2


async def pool(opened: Stand, count: int) -> Row:
    """Full batches one at a time: staged beside the one before, or gathered in the graph.

    Latency is from when all rows are there; the rate counts what staging costs, too.
    """
    gpu = opened.device.gpu
    one = next(iter(opened.opened.values()))
    await opened.rig.do(CreatePartition(gpu.id, _NAME, half_pct(gpu)), _LIMIT_S)
    largest = (one.model.signature.max_batch,)
    await opened.rig.do(Load(gpu.id, _NAME, one.model.key, largest), _LIMIT_S)
    sides = {staged: await _side(opened, one, count, staged) for staged in (True, False)}
    await opened.rig.do(ReleasePartition(gpu.id, _NAME), _LIMIT_S)
    what = f"input pool: {one.model.name}, a full batch staged on arrival, over gathered"
    return versus(what, sides[True], sides[False], "p50_ms")


async def _side(opened: Stand, one: Opened, count: int, staged: bool) -> Side:
    took_ms: list[float] = []
    rows = one.model.signature.max_batch
    ready = _members(opened, one)
    if staged:
        await _staged(opened, ready, 0)
    for number in range(_WARM + count):
        if number == _WARM:
            took_ms.clear()
            began_s, began_cpu_s = time.perf_counter(), cpu_s(opened)
        window = number % _WINDOWS
        slot = window * rows if staged else None
        batch = Batch(opened.rig.next_id(), one.model.key, ready, rows, slot=slot)
        ready = _members(opened, one)
        running = opened.rig.run(_NAME, batch, _LIMIT_S)
        if staged:
            done, _ = await asyncio.gather(running, _staged(opened, ready, (window + 1) % _WINDOWS))
        else:
            done = await running
        took_ms.append(done.took_ms)
    seconds, spent_s = time.perf_counter() - began_s, cpu_s(opened) - began_cpu_s
    found = side(took_ms, rows, cpu_ms=1000.0 * spent_s / count)
    return {**found, "rps": rows * count / seconds}


def _members(opened: Stand, one: Opened) -> tuple[Request, ...]:
    rows = one.model.signature.max_batch
    return tuple(one.request(opened.rig.next_id(), 0.0, _NEVER_MS) for _ in range(rows))


async def _staged(opened: Stand, members: tuple[Request, ...], window: int) -> None:
    """All of them copied into their slots of the ring."""
    slots = _WINDOWS * len(members)
    await asyncio.gather(
        *(
            _stage(
                opened, CopyInputs(opened.device.gpu.id, request, window * len(members) + at, slots)
            )
            for at, request in enumerate(members)
        )
    )


async def _stage(opened: Stand, work: CopyInputs) -> None:
    """One copy.

    Raises:
        RuntimeError: the device refused it.
    """
    ended: asyncio.Future[WorkFinished] = asyncio.get_running_loop().create_future()
    opened.device.do(work, ended.set_result)
    failure = (await asyncio.wait_for(ended, _LIMIT_S)).failure
    if failure is not None:
        raise RuntimeError(failure.detail)
