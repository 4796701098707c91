"""How long an execution takes on a lane: as a graph, which is how it will be served."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.lanes import CaptureStream

_WARM: Final = 3
_RUNS: Final = 20


#: The ms that one execution on a stream takes.
Stopwatch = Callable[[CudaBackend, CaptureStream, Callable[[], object]], float]


def graph_ms(backend: CudaBackend, stream: CaptureStream, run: Callable[[], object]) -> float:
    """The mean over replays one after the other, between two events.

    The lane need not be idle, but is timed with what runs on it.
    """
    driver = backend.driver
    kept: list[object] = []

    def body() -> None:
        kept[:] = [run()]

    captured = stream.capture(body)
    with ExitStack() as steps:
        steps.callback(stream.destroy, captured)
        begin, end = driver.event(timing=True), driver.event(timing=True)
        steps.callback(driver.destroy_event, begin)
        steps.callback(driver.destroy_event, end)
        for count in (_WARM, _RUNS):
            driver.record(begin, stream.handle)
            for _ in range(count):
                driver.launch_graph(captured.executable, stream.handle)
            driver.record(end, stream.handle)
            driver.synchronize(stream.handle)
        return driver.elapsed_ms(begin, end) / _RUNS
