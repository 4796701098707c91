"""Comparison 3 on bare lanes of this process: no engine, no device, the mechanism alone.

Sync-lite, GPU-DMA and Multi-Model of the primitives paper (Figure 6, Tables I and IV), the price of
an input pool and of workers as E2bird has them (Figures 7 and 17). What takes processes is in
`sharing`, what takes an engine in `ebird`. Each row has both sides, and the gain that is published.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.gpu.bench import Bench
from bench.gpu.mechanisms import engines, gpu_dma, instances, pieces, sync_lite
from bench.gpu.rows import Row, attempt, skipped


def rows(bench: Bench) -> Iterator[Row]:
    """Every mechanism, as far as time goes."""
    asked = {
        "Sync-lite": sync_lite.rows,
        "GPU-DMA": gpu_dma.rows,
        "Multi-Model": instances.rows,
        "input pool": pieces.rows,
        "engines": engines.rows,
    }
    with bench.backend() as backend:
        for what, ask in asked.items():
            if bench.left_s <= 0:
                yield skipped(what, "no time was left for it")
                continue
            yield from attempt(what, partial(ask, bench, backend))
