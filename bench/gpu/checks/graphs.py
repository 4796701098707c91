"""Whether a captured graph keeps the SMs it was captured on, wherever it is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from bench.gpu.bench import Bench
from bench.gpu.checks import layers
from bench.gpu.lanes import Lane, Lanes, ask_sms, captured, lanes, mapped, middle, ratio, times_ms
from bench.gpu.lanes import words as words_of
from bench.gpu.rows import Row, attempt, judged
from interlace.device.cuda.backend.base import CudaBackend

_FEW_SMS = 16
_NOWHERE = (1 << 64) - 1


def rows(bench: Bench) -> Iterator[Row]:
    """SM numbers of a captured kernel, then times of captured layers, launched elsewhere."""
    with bench.backend() as backend, lanes(backend.driver) as cut:
        yield from attempt("SMs of a captured kernel", lambda: _numbers(backend, cut))
        few, whole = cut.first(_FEW_SMS), cut.plain()
        for name, make in _layers().items():
            body = partial(make, bench, backend.torch_device)
            yield from attempt(name, partial(_times, bench, backend, name, body, few, whole))


def _layers() -> dict[str, Callable[[Bench, str], layers.Body]]:
    return {
        "matrix product": layers.gemm,
        "convolution": layers.convolution,
        "attention": layers.attention,
        "compiled": layers.compiled,
    }


def _numbers(backend: CudaBackend, cut: Lanes) -> Iterable[Row]:
    driver = backend.driver
    places = {"its own stream": cut.first(_FEW_SMS), "another partition": cut.beside(_FEW_SMS)}
    places["a plain stream"] = cut.plain()
    own = places["its own stream"]
    blocks = 4 * driver.board.sms
    with mapped(driver, 8 * blocks) as memory:
        seen = words_of(memory, blocks)
        body = partial(ask_sms, backend, own.stream, memory.device, blocks)
        with captured(backend, own, body) as graph:
            body()
            driver.synchronize(own.stream)
            wanted = set(seen)
            for name, lane in places.items():
                for index in range(blocks):
                    seen[index] = _NOWHERE
                driver.launch_graph(graph, lane.stream)
                driver.synchronize(lane.stream)
                ran = set(seen)
                yield judged(
                    f"SMs of the graph on {name}", f"the {len(wanted)} of its capture",
                    f"{len(ran & wanted)} of them, {len(ran - wanted)} others", ran == wanted,
                )  # fmt: skip


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
