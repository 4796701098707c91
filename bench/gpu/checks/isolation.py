"""How much neighbours on other SMs slow a model on SMs of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Final, NamedTuple

from bench.gpu.bench import Bench
from bench.gpu.checks import layers
from bench.gpu.lanes import (
    Lane,
    Place,
    allocated,
    captured,
    lanes,
    mapped,
    quantile,
    ratio,
    times_ms,
)
from bench.gpu.rows import Row, attempt, judged, seen
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.green_contexts.lanes import GreenLanes

_MODEL_SMS: Final = 64
_STREAMED_BYTES: Final = 1 << 30
_CACHED_BYTES: Final = 24 << 20
_CHUNK_BYTES: Final = 32 << 20
_STAY_NS: Final = 2_000_000
_SIDE_BY_SIDE: Final = 6


class Neighbour(NamedTuple):
    """Work that keeps the other SMs, or a copy engine, busy: one piece of about 2 ms."""

    name: str
    launch: Callable[[], None]


def rows(bench: Bench) -> Iterator[Row]:
    """A convolution and a product alone and beside each neighbour; then streams side by side."""
    with bench.backend() as backend, lanes(backend.driver) as cut, ExitStack() as stack:
        own, other = cut.first(_MODEL_SMS), cut.beside(_MODEL_SMS)
        neighbours = _neighbours(bench, backend, other, stack)
        for name, make in (("convolution", layers.convolution), ("product", layers.gemm)):
            body = make(bench, backend.torch_device)
            ask = partial(_beside, bench, backend, name, body, (own, other), neighbours)
            yield from attempt(name, ask)
    yield from attempt("streams side by side", lambda: list(overlap(bench)))


def _neighbours(
    bench: Bench, backend: CudaBackend, lane: Lane, stack: ExitStack
) -> tuple[Neighbour, ...]:
    driver, kernels = backend.driver, backend.kernels
    big = bench.size(_STREAMED_BYTES, 1 << 12)
    device = stack.enter_context(allocated(driver, big))
    host = stack.enter_context(mapped(driver, bench.size(_CHUNK_BYTES, 1 << 12)))
    counter = stack.enter_context(allocated(driver, 64))  # not in host memory: that is a neighbour
    stay_ns = bench.size(_STAY_NS, 1000)
    grid = (4 * lane.sms, 1, 1)

    def streamer(kernel: int, source: int, nbytes: int) -> None:
        arguments = (source, nbytes, stay_ns, counter)
        driver.launch(kernel, grid, (512, 1, 1), lane.stream, arguments)

    cached = min(bench.size(_CACHED_BYTES, 1 << 10), big)
    return (
        Neighbour(
            "arithmetic",
            lambda: driver.launch(kernels.spin, grid, (512, 1, 1), lane.stream, (stay_ns, counter)),
        ),
        Neighbour("device memory", lambda: streamer(kernels.dram_stream, device, big)),
        Neighbour("L2 cache", lambda: streamer(kernels.l2_stream, device, cached)),
        Neighbour("host memory", lambda: streamer(kernels.host_read, host.device, host.nbytes)),
        Neighbour(
            "copies of 32 MiB", lambda: driver.copy(device, host.device, host.nbytes, lane.stream)
        ),
    )


def _beside(
    bench: Bench,
    backend: CudaBackend,
    name: str,
    body: layers.Body,
    sides: tuple[Lane, Lane],
    neighbours: tuple[Neighbour, ...],
) -> Iterable[Row]:
    (own, other), driver, count = sides, backend.driver, bench.size(100, 3)
    with captured(backend, own, body) as graph:
        launch = partial(driver.launch_graph, graph, own.stream)
        alone = times_ms(driver, own.stream, launch, count)
        p50_ms, p99_ms = quantile(alone, 0.5), quantile(alone, 0.99)
        yield seen(
            f"{name} on {own.sms} SMs alone", f"p50 {p50_ms:.3f} ms, p99 {p99_ms:.3f} ms",
            p50_ms=p50_ms, p99_ms=p99_ms,
        )  # fmt: skip
        for neighbour in neighbours:

            def pressed(neighbour: Neighbour = neighbour) -> None:
                neighbour.launch()  # outlasts the model's piece
                launch()

            beside = times_ms(driver, own.stream, pressed, count)
            driver.synchronize(other.stream)  # the next neighbour must not meet this one
            slower = [ratio(quantile(beside, q), quantile(alone, q)) for q in (0.5, 0.99)]
            yield judged(
                f"{name} beside {neighbour.name}", "p99 at most 1.10 of alone",
                f"p50 {slower[0]:.2f}, p99 {slower[1]:.2f} of alone", slower[1] <= 1.10,
                p50=slower[0], p99=slower[1],
            )  # fmt: skip


def overlap(bench: Bench) -> Iterator[Row]:
    """Graphs of 2 ms in 1 to 6 small partitions at once: they should take one's time, also while
    the whole ladder of partitions stands, as it does in service. More streams stand then than there
    are hardware queues: those share, if CUDA deals them out so, and wait for each other."""
    with bench.backend() as backend, ExitStack() as stack:
        began_s = time.perf_counter()
        ladder = stack.enter_context(closing(GreenLanes(backend.driver)))
        count = ladder.prepare()
        ms = (time.perf_counter() - began_s) * 1000.0
        words = f"{ms:.0f} ms, {count} lanes"
        yield seen("time until the ladder stands", words, ms=ms, lanes=count)
        two = next(share for share, atoms in ladder.atoms.sizes.items() if atoms == 2)
        some = [ladder.carve(f"p{index}", two) for index in range(_SIDE_BY_SIDE)]
        graphs = _spinning(bench, backend, some, stack)
        one_ms = _together_ms(backend, graphs[:1])
        yield seen("one partition while the ladder stands", f"{one_ms:.2f} ms", ms=one_ms)
        for count in range(2, len(graphs) + 1):
            what = f"{count} partitions at once while the ladder stands"
            ms = _together_ms(backend, graphs[:count])
            yield judged(
                what, f"about {one_ms:.2f} ms", f"{ms:.2f} ms", ratio(ms, one_ms) < 1.2,
                streams=count, ms=ms,
            )  # fmt: skip


def _spinning(
    bench: Bench, backend: CudaBackend, some: Sequence[Place], stack: ExitStack
) -> list[tuple[int, int]]:
    """A graph on each lane that keeps all its SMs for 2 ms, and the stream to launch it on."""
    counter = stack.enter_context(mapped(backend.driver, 64))
    graphs: list[tuple[int, int]] = []
    for lane in some:
        arguments = (bench.size(_STAY_NS, 1000), counter.device)
        grid, block = (lane.sms, 1, 1), (128, 1, 1)
        body = partial(
            backend.driver.launch, backend.kernels.spin, grid, block, lane.stream, arguments
        )
        graphs.append((stack.enter_context(captured(backend, lane, body)), lane.stream))
    return graphs


def _together_ms(backend: CudaBackend, graphs: list[tuple[int, int]]) -> float:
    took_ms: list[float] = []
    for _ in range(5):
        began_s = time.perf_counter()
        for graph, stream in graphs:
            backend.driver.launch_graph(graph, stream)
        for _, stream in graphs:
            backend.driver.synchronize(stream)
        took_ms.append((time.perf_counter() - began_s) * 1000.0)
    return quantile(took_ms, 0.5)
