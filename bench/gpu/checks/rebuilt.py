"""Graphs captured once on a plain stream, their kernels then given the context of other SMs.

If the driver takes that, a model is captured once for all partitions instead of once for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from bench.gpu.bench import Bench
from bench.gpu.checks import layers
from bench.gpu.lanes import Lane, Lanes, ask_sms, capture, captured, middle, sms_of, times_ms, warm
from bench.gpu.rows import Row, attempt, judged, skipped
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import GreenContext


class Rebuilt(NamedTuple):
    """An executable graph; how many kernels it has, and how many of them know no context yet."""

    executable: int
    kernels: int
    movable: int


def rows(bench: Bench, backend: CudaBackend, cut: Lanes, lane: Lane) -> Iterator[Row]:
    """Our own kernel, a product and a convolution, captured elsewhere and moved to the lane."""
    if bench.dry:
        yield skipped("a graph moved to other SMs", "asked of the real driver only")
        return
    yield from attempt("our kernel, moved", lambda: _own(backend, cut, lane))
    for name, make in (("matrix product", layers.gemm), ("convolution", layers.convolution)):
        body = make(bench, backend.torch_device)
        yield from attempt(f"{name}, moved", partial(_layer, backend, cut, lane, name, body))


def _own(backend: CudaBackend, cut: Lanes, lane: Lane) -> Iterator[Row]:
    plain = cut.plain()
    seen: list[Rebuilt] = []

    def launched(address: int, blocks: int) -> None:
        with moved(
            backend, plain, lane, partial(ask_sms, backend, plain.stream, address, blocks)
        ) as it:
            seen.append(it)
            backend.driver.launch_graph(it.executable, plain.stream)
            backend.driver.synchronize(plain.stream)

    ran = sms_of(backend, launched, plain.stream)
    yield judged(
        "SMs of our kernel captured on a plain stream, moved", f"{lane.sms}",
        f"{len(ran)}; {seen[0].movable} of {seen[0].kernels} kernels could be moved",
        len(ran) == lane.sms, **seen[0]._asdict(),
    )  # fmt: skip


def _layer(
    backend: CudaBackend, cut: Lanes, lane: Lane, name: str, body: layers.Body
) -> Iterator[Row]:
    driver, plain = backend.driver, cut.plain()

    def taken_ms(graph: int) -> float:
        launch = partial(driver.launch_graph, graph, plain.stream)
        return middle(times_ms(driver, plain.stream, launch, 20))

    with captured(backend, lane, body) as there:
        wanted_ms = taken_ms(there)
    with captured(backend, plain, body) as here:
        whole_ms = taken_ms(here)
    with moved(backend, plain, lane, body) as it:
        moved_ms = taken_ms(it.executable)
    yield judged(
        f"{name} captured on a plain stream, moved to {lane.sms} SMs",
        f"{wanted_ms:.3f} ms as captured there",
        f"{moved_ms:.3f} ms; on all SMs {whole_ms:.3f} ms; {it.movable} of {it.kernels} kernels "
        f"could be moved",
        0.9 < moved_ms / wanted_ms < 1.1 and it.movable == it.kernels, **it._asdict(),
    )  # fmt: skip


@contextmanager
def moved(
    backend: CudaBackend, source: Lane, target: Lane, body: Callable[[], object]
) -> Iterator[Rebuilt]:
    """A body captured on one lane, as a graph that runs on the SMs of another.

    Raises:
        CudaError: the driver refuses a step, which its message names.
    """
    from cuda.bindings import driver as cu

    from interlace.device.cuda.driver.calls import call

    warm(backend, source, body)
    made: Any = capture(backend, source, body)
    assert target.green is not None
    copy = call(cu.cuGraphClone, cu.CUgraph(int(made._graph.raw_cuda_graph())))
    try:
        it = _rebuilt(cu, copy, target.green)
        try:
            yield it
        finally:
            call(cu.cuGraphExecDestroy, cu.CUgraphExec(it.executable))
    finally:
        call(cu.cuGraphDestroy, copy)
        made.close()


def _rebuilt(cu: Any, graph: Any, green: GreenContext) -> Rebuilt:
    from interlace.device.cuda.driver.calls import call

    context = call(cu.cuCtxFromGreenCtx, cu.CUgreenCtx(green.handle))
    _, count = call(cu.cuGraphGetNodes, graph)
    nodes, _ = call(cu.cuGraphGetNodes, graph, count)
    kernels = movable = 0
    for node in nodes:
        if call(cu.cuGraphNodeGetType, node) != cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            continue
        kernels += 1
        given = call(cu.cuGraphKernelNodeGetParams, node)
        if not int(given.kern):
            continue  # it is a function of one context already
        movable += 1
        given.func, given.ctx = cu.CUfunction(0), context
        call(cu.cuGraphKernelNodeSetParams, node, given)
    return Rebuilt(int(call(cu.cuGraphInstantiate, graph, 0)), kernels, movable)
