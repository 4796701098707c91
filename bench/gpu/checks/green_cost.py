"""What a green context and a stream cost, and how many there can be."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from bench.gpu.bench import Bench
from bench.gpu.lanes import middle
from bench.gpu.rows import Row, attempt, judged, seen
from interlace.device.cuda.driver.api import Driver, GreenContext
from interlace.device.cuda.driver.errors import CudaError

_WANTED = 64


def rows(bench: Bench) -> Iterator[Row]:
    """Contexts until 64 stand or one is refused; streams on one of them; then all given back."""
    with bench.driver() as driver:
        yield from attempt("green contexts", lambda: _contexts(driver))
        yield from attempt("streams", lambda: _streams(driver))


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
