"""How the end of a batch is known: from launch until it is told."""

import select
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bench.gpu.bench import Bench
from bench.gpu.lanes import Lane, captured, mapped, middle, times_ms, words
from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.flag_poller import FlagPoller

_LIMIT_S = 2.0
_WARM = 5


class Known(NamedTuple):
    """Medians in ms: from launch to known, and the GPU's own part of it."""

    took_ms: float
    gpu_ms: float


def timed(
    bench: Bench, backend: CudaBackend, lane: Lane, body: Callable[[], Any], count: int
) -> Known:
    """A body that ends with our signal, ``count`` times.

    Raises:
        OSError: there is no C compiler.
        TimeoutError: an end was not told.
    """
    driver, one = backend.driver, (1, 1, 1)
    ways = FlagPoller(driver, 1)
    try:
        with mapped(driver, 64) as sequence:
            arguments = (ways.flag(0).device, sequence.device)

            def signalled() -> None:
                body()
                driver.launch(backend.kernels.signal, one, one, lane.stream, arguments)

            with captured(backend, lane, signalled) as graph:
                launch = partial(driver.launch_graph, graph, lane.stream)
                own_ms = middle(times_ms(driver, lane.stream, launch, bench.size(30, 2)))
                number = words(sequence, 1)
                took_ms: list[float] = []
                for _ in range(_WARM + count):
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
    finally:
        ways.close()
    return Known(middle(took_ms[_WARM:]), own_ms)
