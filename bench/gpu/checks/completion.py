"""How soon and at what cost the end of a batch is known, by each way to learn it."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from bench.gpu.bench import Bench
from bench.gpu.checks import layers
from bench.gpu.completions import KINDS, Kind, completions
from bench.gpu.lanes import Lane, captured, lanes, mapped, middle, quantile, times_ms, words
from bench.gpu.rows import Row, attempt, judged, seen
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.completion.base import Completions
from interlace.device.cuda.driver.api import MappedBlock

_LIMIT_S = 2.0
_WARM = 5


class Known(NamedTuple):
    """Times from launch to known, the process's CPU time for one, the GPU's own, in ms; and from
    launch until a core that does nothing but read the flag has seen it, which is the end itself."""

    took_ms: list[float]
    cpu_ms: float
    gpu_ms: float
    end_ms: float


def rows(bench: Bench) -> Iterator[Row]:
    """Each way quiet and beside a busy Python thread; then the host's time to launch a graph."""
    with bench.backend() as backend:
        yield from attempt("ways", lambda: compared(bench, backend, KINDS))
        yield from attempt("launches", lambda: _launches(bench, backend))


def compared(bench: Bench, backend: CudaBackend, kinds: Sequence[Kind]) -> Iterable[Row]:
    """A convolution that ends with our signal, each way; delays after the flag can be seen."""
    body = layers.convolution(bench, backend.torch_device)
    with lanes(backend.driver) as cut:
        lane = cut.first(64)
        for kind in kinds:
            yield from attempt(kind, partial(_way, bench, backend, lane, body, kind))


def _way(
    bench: Bench, backend: CudaBackend, lane: Lane, body: layers.Body, kind: Kind
) -> Iterable[Row]:
    for name, busy in (("quiet", 0), ("beside a busy Python thread", 1)):
        known = timed(bench, backend, lane, body, kind, bench.size(300, 3), busy)
        delays_us = [(ms - known.end_ms) * 1000.0 for ms in known.took_ms]
        p50, p99 = quantile(delays_us, 0.5), quantile(delays_us, 0.99)
        yield seen(
            f"{kind}, {name}: known after the end",
            f"p50 {p50:.0f} us, p99 {p99:.0f} us; CPU {known.cpu_ms * 1000.0:.0f} us",
            p50_us=p50, p99_us=p99, cpu_us=known.cpu_ms * 1000.0, gpu_ms=known.gpu_ms,
            end_ms=known.end_ms, way=kind,
        )  # fmt: skip


def timed(
    bench: Bench,
    backend: CudaBackend,
    lane: Lane,
    body: layers.Body,
    kind: Kind,
    count: int,
    busy: int = 0,
) -> Known:
    """A body that ends with our signal, ``count`` times, its end learnt in one way.

    Raises:
        OSError: this way needs a C compiler.
        TimeoutError: an end was not told.
    """
    driver = backend.driver
    with ExitStack() as stack:
        ways = completions(kind, driver, 1)
        stack.callback(ways.close)
        sequence = stack.enter_context(mapped(driver, 64))
        number = words(sequence, 1)
        graph = stack.enter_context(_ending(backend, lane, body, ways.flag(0), sequence))
        launch = partial(driver.launch_graph, graph, lane.stream)
        own_ms = middle(times_ms(driver, lane.stream, launch, bench.size(30, 2)))
        end_ms = _end_ms(backend, lane, body, bench.size(50, 2))
        with _busy(busy):
            took_ms, cpu_ms = _known(ways, lane, number, launch, count)
    return Known(took_ms, cpu_ms, own_ms, end_ms)


def _ending(
    backend: CudaBackend, lane: Lane, body: layers.Body, flag: MappedBlock, sequence: MappedBlock
) -> AbstractContextManager[int]:
    """The graph of a body that stores the word at ``sequence`` in ``flag`` at its end."""
    one = (1, 1, 1)

    def signalled() -> None:
        body()
        arguments = (flag.device, sequence.device)
        backend.driver.launch(backend.kernels.signal, one, one, lane.stream, arguments)

    return captured(backend, lane, signalled)


def _end_ms(backend: CudaBackend, lane: Lane, body: layers.Body, count: int) -> float:
    """From launch until the flag is seen by a core that reads nothing else, the median."""
    driver = backend.driver
    with mapped(driver, 64) as flag, mapped(driver, 64) as sequence:
        seen_, number = words(flag, 1), words(sequence, 1)
        with _ending(backend, lane, body, flag, sequence) as graph:
            took_ms: list[float] = []
            for _ in range(_WARM + count):
                number[0] += 1
                wanted = number[0]
                began_s = time.perf_counter()
                driver.launch_graph(graph, lane.stream)
                while seen_[0] != wanted:
                    if time.perf_counter() - began_s > _LIMIT_S:
                        raise TimeoutError(f"no flag within {_LIMIT_S:g} s")
                took_ms.append((time.perf_counter() - began_s) * 1000.0)
    return middle(took_ms[_WARM:])


def _known(
    ways: Completions, lane: Lane, number: Any, launch: Callable[[], object], count: int
) -> tuple[list[float], float]:
    took_ms: list[float] = []
    for place in range(_WARM + count):
        if place == _WARM:
            took_ms.clear()
            began_cpu_s = time.process_time()
        number[0] += 1
        began_s = time.perf_counter()
        launch()
        ways.submitted(0, number[0], lane.stream)
        while not ways.drain():
            ready, _, _ = select.select([ways.fileno()], [], [], _LIMIT_S)
            if not ready:
                ways.check()
                raise TimeoutError(f"the end was not told within {_LIMIT_S:g} s")
        took_ms.append((time.perf_counter() - began_s) * 1000.0)
    return took_ms, (time.process_time() - began_cpu_s) * 1000.0 / count


@contextmanager
def _busy(threads: int) -> Iterator[None]:
    """Python threads that compute all the time."""
    on = threading.Event()
    on.set()

    def work() -> None:
        value = 0
        while on.is_set():
            value = (value * 31 + 7) % 1_000_003

    made = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for one in made:
        one.start()
    try:
        yield
    finally:
        on.clear()
        for one in made:
            one.join()


def _launches(bench: Bench, backend: CudaBackend) -> Iterable[Row]:
    """Host time of ``cuGraphLaunch`` through the driver's bindings, nothing waited for."""
    body, driver = layers.convolution(bench, backend.torch_device), backend.driver
    with lanes(driver) as cut:
        lane = cut.first(64)
        with captured(backend, lane, body) as graph:
            took_us: list[float] = []
            for _ in range(bench.size(100, 3)):
                began_s = time.perf_counter()
                driver.launch_graph(graph, lane.stream)
                took_us.append((time.perf_counter() - began_s) * 1e6)
                driver.synchronize(lane.stream)
    yield judged(
        "host time of a graph's launch", "at most 15 us",
        f"p50 {middle(took_us):.1f} us, p99 {quantile(took_us, 0.99):.1f} us",
        middle(took_us) <= 15.0, p50_us=middle(took_us), p99_us=quantile(took_us, 0.99),
    )  # fmt: skip
