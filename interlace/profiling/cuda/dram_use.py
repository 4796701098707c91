"""DRAM utilisation of batches that run back to back, by the GPU's own counters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from interlace.core.messages import Load, Unload
from interlace.core.model import Model
from interlace.profiling.corun_partitions import keep_busy
from interlace.profiling.cuda.nvml import Nvml
from interlace.profiling.rig import MeasureError, Rig
from interlace.profiling.samples import SampleInputs

_TIMEOUT_S = 120.0
#: Before counting: clocks settle.
_SETTLE_S = 0.3


async def measure_dram_use(
    rig: Rig, nvml: Nvml, model: Model, points: Mapping[int, Sequence[int]], seconds: float = 1.0
) -> dict[tuple[int, int], float]:
    """DRAM utilisation, 0..1, by (batch, share), the GPU kept full for ``seconds`` each.

    ``points`` are batches by share. What the GPU does not count is left out.

    Raises:
        MeasureError: the model does not load or fails.
        NvmlError: the counters are refused.
    """
    found: dict[tuple[int, int], float] = {}
    inputs = SampleInputs(model, rig.arena)
    try:
        for share_pct, batches in points.items():
            partition = await rig.partition(share_pct, _TIMEOUT_S)
            async with _loaded(rig, partition, model, batches):
                for batch in batches:
                    await keep_busy(rig, partition, inputs, batch, _SETTLE_S, depth=2)
                    first = nvml.sample()
                    await keep_busy(rig, partition, inputs, batch, seconds, depth=2)
                    used = nvml.dram_use(first, nvml.sample())
                    if used is not None:
                        found[batch, share_pct] = used
    finally:
        inputs.release()
    return found


@asynccontextmanager
async def _loaded(
    rig: Rig, partition: str, model: Model, batches: Sequence[int]
) -> AsyncIterator[None]:
    await rig.do(Load(rig.gpu.id, partition, model.key, tuple(batches)), _TIMEOUT_S)
    try:
        yield
    finally:
        with suppress(MeasureError):  # the partition died with the model
            await rig.do(Unload(rig.gpu.id, partition, model.key), _TIMEOUT_S)
