"""Memory of an engine of workers: weights once or each its own, against one large worker."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from bench.gpu.bench import Bench
from bench.gpu.lanes import captured, lanes
from bench.gpu.mechanisms.nets import Net, network
from bench.gpu.mechanisms.published import ENGINE_OVER_NAIVE, ENGINE_OVER_TF, MOST_ROWS, WORKERS
from bench.gpu.mechanisms.sides import Side, versus
from bench.gpu.rows import Row
from interlace.device.cuda.backend.base import CudaBackend

_NETS: Final = ("resnet50", "vgg19")


def rows(bench: Bench, backend: CudaBackend) -> Iterator[Row]:
    """E2bird's engine over six workers that share nothing, and over a worker of 32 (Figure 17)."""
    for name in _NETS:
        ours = _held(bench, backend, name, WORKERS, shared=True)
        naive = _held(bench, backend, name, WORKERS, shared=False)
        single = _held(bench, backend, name, (MOST_ROWS,), shared=True)
        what = f"E2bird: memory of {name}, {len(WORKERS)} workers with the weights once"
        yield versus(f"{what}, over each its own", ours, naive, "nbytes", ENGINE_OVER_NAIVE)
        yield versus(f"{what}, over one of {MOST_ROWS}", ours, single, "nbytes", ENGINE_OVER_TF)


def _held(
    bench: Bench, backend: CudaBackend, name: str, workers: Sequence[int], shared: bool
) -> Side:
    """Device memory of graphs of these sizes, each with a pool of its own, and their weights."""
    driver = backend.driver
    with lanes(driver) as cut, ExitStack() as stack:
        places = [cut.plain() for _ in workers]
        first = network(bench, backend.torch_device, name, 1)
        for lane in places:  # libraries take their workspaces now
            with captured(backend, lane, first.body()):
                pass
        let_go(backend)
        before = driver.memory().free_bytes + first.weights_bytes
        kept: list[Net] = []
        for rows_, lane in zip(workers, places, strict=True):
            net = (first if shared or not kept else first.copied()).with_rows(rows_)
            kept.append(net)
            stack.enter_context(captured(backend, lane, net.body()))
        let_go(backend)
        held = before - driver.memory().free_bytes
    del kept, first, net
    let_go(backend)
    return {"nbytes": float(max(0, held))}


def let_go(backend: CudaBackend) -> None:
    """Give back what torch keeps for later."""
    import torch

    gc.collect()
    if backend.torch_device != "cpu":
        torch.cuda.empty_cache()
