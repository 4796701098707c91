"""Memory and time that captures take, and whether another lane can serve meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from bench.gpu.bench import Bench
from bench.gpu.checks import layers
from bench.gpu.lanes import Lane, Lanes, capture, captured, lanes, quantile, warm
from bench.gpu.mechanisms.engines import let_go
from bench.gpu.mechanisms.nets import network
from bench.gpu.rows import Row, attempt, judged, seen
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.graphs.capture import CapturedGraph

_NET: Final = "resnet50"
_BUCKETS: Final = (32, 16, 8, 4, 2, 1)


def rows(bench: Bench) -> Iterator[Row]:
    """Six buckets of a network in one pool; then captures while another lane replays."""
    with bench.backend() as backend, lanes(backend.driver) as cut:
        yield from attempt("captures", lambda: _captures(bench, backend, cut))
        yield from attempt("replays beside a capture", lambda: _beside(bench, backend, cut))


def _captures(bench: Bench, backend: CudaBackend, cut: Lanes) -> Iterable[Row]:
    driver, lane, pool = backend.driver, cut.first(64), None
    kept: list[CapturedGraph] = []
    first_bytes = driver.memory().free_bytes
    for batch in bench.size(_BUCKETS, (2, 1)):
        body = network(bench, backend.torch_device, _NET, batch).body()
        warm(backend, lane, body)
        before_bytes = driver.memory().free_bytes
        began_s = time.perf_counter()
        made = capture(backend, lane, body, pool)
        ms = (time.perf_counter() - began_s) * 1000.0
        kept.append(made)
        pool = made.pool
        grown = before_bytes - driver.memory().free_bytes
        yield seen(
            f"graph of batch {batch}, pool shared", f"{grown / 2**20:.1f} MiB, {ms:.1f} ms",
            nbytes=grown, ms=ms, batch=batch,
        )  # fmt: skip
    driver.synchronize(lane.stream)
    for made in kept:
        made.close()
    let_go(backend)
    left = first_bytes - driver.memory().free_bytes
    yield seen("memory after all graphs are closed", f"{left / 2**20:.1f} MiB", nbytes=left)


def _beside(bench: Bench, backend: CudaBackend, cut: Lanes) -> Iterable[Row]:
    """Replay on one lane, from this thread, while another thread captures on another lane."""
    driver, serving, aside = backend.driver, cut.first(64), cut.beside(64)
    body = layers.convolution(bench, backend.torch_device)
    other = network(bench, backend.torch_device, _NET, 1).body()
    warm(backend, aside, other)
    with captured(backend, serving, body) as graph:
        alone_ms = _replays(driver, graph, serving.stream, 100)
        errors: list[BaseException] = []
        capture = threading.Thread(
            target=_keep_capturing, args=(bench, backend, aside, other, errors)
        )
        capture.start()
        beside_ms: list[float] = []
        while capture.is_alive() or not beside_ms:
            beside_ms += _replays(driver, graph, serving.stream, 10)
        capture.join()
    if errors:
        raise errors[0]
    p99s = quantile(alone_ms, 0.99), quantile(beside_ms, 0.99)
    yield judged(
        "p99 of replays while another thread captures", f"near {p99s[0]:.3f} ms, as alone",
        f"{p99s[1]:.3f} ms", p99s[1] < 1.5 * p99s[0] + 0.2, alone_ms=p99s[0], beside_ms=p99s[1],
    )  # fmt: skip


def _keep_capturing(
    bench: Bench,
    backend: CudaBackend,
    lane: Lane,
    body: Callable[[], Any],
    errors: list[BaseException],
) -> None:
    try:
        for _ in range(bench.size(10, 1)):
            capture(backend, lane, body).close()
    except BaseException as error:
        errors.append(error)


def _replays(driver: Driver, graph: int, stream: int, count: int) -> list[float]:
    took_ms: list[float] = []
    for _ in range(count):
        began_s = time.perf_counter()
        driver.launch_graph(graph, stream)
        driver.synchronize(stream)
        took_ms.append((time.perf_counter() - began_s) * 1000.0)
    return took_ms
