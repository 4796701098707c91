"""Rates of copies and gathers, and what a small copy waits behind large ones."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from bench.gpu.bench import Bench
from bench.gpu.lanes import allocated, lanes, mapped, middle, quantile, rate_gbs, times_ms, words
from bench.gpu.rows import Row, attempt, judged, seen
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import Driver

_SIZES: Final = tuple(1 << bits for bits in (16, 18, 20, 22, 24, 26, 28, 30))
_CHUNKS_MIB: Final = (1, 4, 16, 32, 64)
_CTAS: Final = (1, 2, 4, 8, 16, 32, 64)
_SMALL_BYTES: Final = 150_528  # a picture of 224 x 224 x 3
_IMAGE_ROWS: Final = 32


def rows(bench: Bench) -> Iterator[Row]:
    """Single copies by size, small beside large, gathers by CTAs."""
    with bench.backend() as backend, ExitStack() as stack:
        most = bench.size(1 << 30, 1 << 16)
        device = stack.enter_context(allocated(backend.driver, most))
        host = stack.enter_context(mapped(backend.driver, most))
        driver = backend.driver
        yield from attempt("copies", lambda: _single(bench, driver, device, host.device))
        yield from attempt("behind", lambda: _behind(bench, driver, device, host.device, most))
        yield from attempt("gathers", lambda: _gathers(bench, backend, device, host.device))


def _single(bench: Bench, driver: Driver, device: int, host: int) -> Iterable[Row]:
    stream = driver.stream()
    for size in bench.size(_SIZES, (1 << 10, 1 << 16)):
        for words_, target, source in (("to", device, host), ("from", host, device)):
            count = bench.size(max(3, min(20, (1 << 30) // size)), 1)
            copy = partial(driver.copy, target, source, size, stream)
            ms = middle(times_ms(driver, stream, copy, count, 1))
            yield seen(
                f"copy {words_} the GPU, {size >> 10} KiB",
                f"{rate_gbs(size, ms):.1f} GB/s, {ms:.3f} ms",
                nbytes=size, ms=ms,
            )  # fmt: skip
    driver.destroy_stream(stream)


def _behind(bench: Bench, driver: Driver, device: int, host: int, most: int) -> Iterable[Row]:
    """A picture's copy on a stream of its own while a large copy runs in chunks on another."""
    large, small = driver.stream(), driver.stream(None, -1)
    size = min(_SMALL_BYTES, most // 2)
    alone = times_ms(driver, small, partial(driver.copy, device, host, size, small), 5)
    yield seen("a picture's copy alone", f"{middle(alone):.3f} ms", ms=middle(alone))
    for mib in bench.size(_CHUNKS_MIB, (1,)):
        chunk = min(mib << 20, most // 2)
        for place in range(0, most - chunk + 1, chunk):
            driver.copy(device + place, host + place, chunk, large)
        waits_ms: list[float] = []
        end_s = time.monotonic() + bench.size(0.015, 0.0)
        while not waits_ms or time.monotonic() < end_s:
            began_s = time.perf_counter()
            driver.copy(device, host, size, small)
            driver.synchronize(small)
            waits_ms.append((time.perf_counter() - began_s) * 1000.0)
        driver.synchronize(large)
        yield seen(
            f"a picture's copy behind chunks of {mib} MiB",
            f"p50 {middle(waits_ms):.3f} ms, worst {max(waits_ms):.3f} ms",
            p50_ms=middle(waits_ms), worst_ms=max(waits_ms), count=len(waits_ms),
        )  # fmt: skip
    for stream in (large, small):
        driver.destroy_stream(stream)


def _gathers(bench: Bench, backend: CudaBackend, device: int, host: int) -> Iterable[Row]:
    """32 pictures read by our kernel from page-locked memory, by number of CTAs."""
    driver = backend.driver
    row_bytes, count = bench.size((_SMALL_BYTES, _IMAGE_ROWS), (64, 4))
    with lanes(driver) as cut, mapped(driver, 8 * (count + 1)) as table:
        lane = cut.plain()
        entries = words(table, count + 1)
        entries[0] = count
        for index in range(count):
            entries[1 + index] = host + (index * 7919 % count) * row_bytes
        arguments = (table.device + 8, table.device, device, row_bytes, count)
        best = 0.0
        for ctas in bench.size(_CTAS, (1,)):
            gather = partial(
                driver.launch, backend.kernels.gather_rows, (ctas, 1, 1), (512, 1, 1),
                lane.stream, arguments,
            )  # fmt: skip
            took_ms = times_ms(driver, lane.stream, gather, bench.size(20, 1))
            rate = rate_gbs(row_bytes * count, middle(took_ms))
            best = max(best, rate)
            yield seen(
                f"gather of {count} pictures by {ctas} CTAs",
                f"{rate:.1f} GB/s, p99 {quantile(took_ms, 0.99):.3f} ms",
                ctas=ctas, ms=middle(took_ms), nbytes=row_bytes * count,
            )  # fmt: skip
        yield judged("best gather", "at least 35 GB/s", f"{best:.1f} GB/s", best >= 35, gbs=best)
