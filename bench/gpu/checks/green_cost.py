"""What a green context and a stream cost, and how many there can be."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Final

from bench.gpu.bench import Bench
from bench.gpu.lanes import Place, captured, mapped, middle, quantile, ratio
from bench.gpu.rows import Row, attempt, judged, seen
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import Driver, GreenContext
from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.green_contexts.lanes import GreenLanes

_WANTED = 64
_STAY_NS: Final = 2_000_000
_SIDE_BY_SIDE: Final = 6


def rows(bench: Bench) -> Iterator[Row]:
    """Contexts until 64 stand or one is refused; streams on one; partitions side by side."""
    with bench.driver() as driver:
        yield from attempt("green contexts", lambda: _contexts(driver))
        yield from attempt("streams", lambda: _streams(driver))
    yield from attempt("streams side by side", lambda: list(overlap(bench)))


def _contexts(driver: Driver) -> Iterable[Row]:
    atoms = driver.split(8).atoms
    free_bytes = driver.memory().free_bytes
    made: list[GreenContext] = []
    took_ms: list[float] = []
    refused = ""
    for number in range(_WANTED):
        began_s = time.perf_counter()
        try:
            made.append(driver.green(atoms[: 1 + number % len(atoms)]))
        except CudaError as error:
            refused = f", then: {error}"
            break
        took_ms.append((time.perf_counter() - began_s) * 1000.0)
    held_bytes = free_bytes - driver.memory().free_bytes
    yield judged(
        "green contexts at once", f"{_WANTED}", f"{len(made)}{refused}", len(made) == _WANTED,
        count=len(made),
    )  # fmt: skip
    yield seen(
        "time of a green context", f"{middle(took_ms):.2f} ms, the first {took_ms[0]:.2f} ms",
        median_ms=middle(took_ms), first_ms=took_ms[0], worst_ms=max(took_ms),
    )  # fmt: skip
    each = held_bytes / len(made)
    yield seen("memory of a green context", f"{each / 2**20:.2f} MiB", nbytes=each)
    yield from _given_back(driver, made, free_bytes)


def _given_back(driver: Driver, made: list[GreenContext], free_bytes: int) -> Iterable[Row]:
    took_ms: list[float] = []
    for green in reversed(made):
        began_s = time.perf_counter()
        driver.destroy_green(green)
        took_ms.append((time.perf_counter() - began_s) * 1000.0)
    kept_bytes = free_bytes - driver.memory().free_bytes
    yield seen("time to destroy one", f"{middle(took_ms):.2f} ms", median_ms=middle(took_ms))
    yield judged(
        "memory kept after all are destroyed", "under 1 MiB", f"{kept_bytes / 2**20:.2f} MiB",
        kept_bytes < 1 << 20, nbytes=kept_bytes,
    )  # fmt: skip


def _streams(driver: Driver) -> Iterable[Row]:
    green = driver.green(driver.split(8).atoms[:2])
    free_bytes = driver.memory().free_bytes
    took_ms: list[float] = []
    streams: list[int] = []
    for number in range(_WANTED):
        began_s = time.perf_counter()
        streams.append(driver.stream(green, -(number % 2)))
        took_ms.append((time.perf_counter() - began_s) * 1000.0)
    held_bytes = free_bytes - driver.memory().free_bytes
    for stream in streams:
        driver.destroy_stream(stream)
    driver.destroy_green(green)
    each = held_bytes / _WANTED
    yield seen(
        "a stream of a green context", f"{middle(took_ms):.3f} ms, {each / 1024:.1f} KiB",
        median_ms=middle(took_ms), nbytes=each,
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
