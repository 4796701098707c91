"""What a model that is served feels while others are loaded and unloaded on the same GPU.

Freeing device memory may wait for the whole device, and taking it holds a lock of the driver; a
load does both, in the process that serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from bench.fidelity.measured import half_pct
from bench.fidelity.stand import Stand
from bench.gpu.bench import Bench
from bench.gpu.lanes import quantile
from bench.gpu.opened import on_each
from bench.gpu.rows import Row, judged
from interlace.core.messages import CreatePartition, Load, ReleasePartition, Unload
from interlace.profiling.corun_partitions import keep_busy
from interlace.profiling.samples import SampleInputs

#: The first is served, the second comes and goes.
_MODELS: Final = ("resnet50", "mobilenet_v2")
_SERVED, _LOADED = "served", "loaded"
_LIMIT_S: Final = 60.0
_ROWS: Final = 4
#: Beside p99 alone: a stall of more is what a request in time would feel.
_MOST_MS: Final = 1.0


async def rows(bench: Bench) -> AsyncIterator[Row]:
    """A row a mechanism of one process: p99 of batches alone, and while a model comes and goes."""

    async def ask(opened: Stand, kind: str) -> AsyncIterator[Row]:
        yield await beside_loads(opened, kind, bench.size(2.0, 0.1), bench.size(6, 1))

    async for row in on_each(bench, ("green", "streams"), _MODELS, ask):
        yield row


async def beside_loads(opened: Stand, kind: str, seconds: float, times: int) -> Row:
    """Batches of a model back to back for so long, then while another is loaded so many times."""
    gpu, rig = opened.device.gpu, opened.rig
    served, loaded = opened.models()[:2]
    rows_ = min(_ROWS, served.signature.max_batch)
    for name in (_SERVED, _LOADED):
        await rig.do(CreatePartition(gpu.id, name, half_pct(gpu)), _LIMIT_S)
    await rig.do(Load(gpu.id, _SERVED, served.key, (rows_,)), _LIMIT_S)
    inputs = SampleInputs(served, opened.arena)
    try:
        await keep_busy(rig, _SERVED, inputs, rows_, seconds / 10)
        alone = [one.took_ms for one in await keep_busy(rig, _SERVED, inputs, rows_, seconds)]
        coming = asyncio.create_task(_come_and_go(opened, loaded.key, times))
        beside: list[float] = []
        while not coming.done() or not beside:
            piece = await keep_busy(rig, _SERVED, inputs, rows_, seconds / 20)
            beside += [one.took_ms for one in piece]
        took_ms = await coming
    finally:
        inputs.release()
    for name in (_SERVED, _LOADED):
        await rig.do(ReleasePartition(gpu.id, name), _LIMIT_S)
    p99, most = quantile(alone, 0.99), quantile(beside, 0.99)
    return judged(
        f"p99 of {served.name} while {loaded.name} comes and goes ({kind})",
        f"at most {_MOST_MS:g} ms over the {p99:.2f} ms alone",
        f"{most:.2f} ms, worst {max(beside):.2f} ms, over {len(beside)} batches and {times} loads "
        f"of {quantile(took_ms, 0.5):.0f} ms",
        most <= p99 + _MOST_MS, alone_p99_ms=p99, beside_p99_ms=most, worst_ms=max(beside),
        alone_worst_ms=max(alone), load_ms=took_ms,
    )  # fmt: skip


async def _come_and_go(opened: Stand, key: str, times: int) -> list[float]:
    """How long each load took."""
    gpu, took_ms = opened.device.gpu.id, []
    for _ in range(times):
        took_ms.append((await opened.rig.do(Load(gpu, _LOADED, key), _LIMIT_S)).took_ms)
        await opened.rig.do(Unload(gpu, _LOADED, key), _LIMIT_S)
    return took_ms
