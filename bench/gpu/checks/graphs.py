"""Whether a captured graph keeps the SMs it was captured on, wherever it is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from bench.gpu.bench import Bench
from bench.gpu.checks import layers
from bench.gpu.lanes import Lane, captured, lanes, middle, ratio, times_ms
from bench.gpu.rows import Row, attempt, judged
from interlace.device.cuda.backend.base import CudaBackend

_FEW_SMS = 16
_LAYERS = {
    "matrix product": layers.gemm,
    "convolution": layers.convolution,
    "attention": layers.attention,
    "compiled": layers.compiled,
}


def rows(bench: Bench) -> Iterator[Row]:
    """Times of captured layers, launched elsewhere; `preflight` has the SMs of a kernel."""
    with bench.backend() as backend, lanes(backend.driver) as cut:
        few, whole = cut.first(_FEW_SMS), cut.plain()
        for name, make in _LAYERS.items():
            body = partial(make, bench, backend.torch_device)
            yield from attempt(name, partial(_times, bench, backend, name, body, few, whole))


def _times(
    bench: Bench,
    backend: CudaBackend,
    name: str,
    make: Callable[[], layers.Body],
    few: Lane,
    whole: Lane,
) -> Iterable[Row]:
    """A layer captured on few SMs must take as long on a plain stream as on its own."""
    body, driver = make(), backend.driver
    count = bench.size(20, 2)

    def taken_ms(graph: int, lane: Lane) -> float:
        launch = partial(driver.launch_graph, graph, lane.stream)
        return middle(times_ms(driver, lane.stream, launch, count))

    with captured(backend, few, body) as narrow:
        own_ms, moved_ms = taken_ms(narrow, few), taken_ms(narrow, whole)
    with captured(backend, whole, body) as wide:
        whole_ms = taken_ms(wide, whole)
    kept = 0.9 < ratio(moved_ms, own_ms) < 1.1
    yield judged(
        f"{name} captured on {few.sms} SMs, launched on a plain stream",
        f"{own_ms:.3f} ms as on its own", f"{moved_ms:.3f} ms; on all SMs {whole_ms:.3f} ms", kept,
        own_ms=own_ms, moved_ms=moved_ms, whole_ms=whole_ms,
    )  # fmt: skip
