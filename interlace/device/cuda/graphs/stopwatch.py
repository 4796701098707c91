"""How long an execution takes on a lane: as a graph, which is how it will be served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import Driver
from interlace.device.cuda.lanes import CaptureStream

_WARM: Final = 3
_RUNS: Final = 20


#: The ms that a launch takes.
TimeLaunch = Callable[[Callable[[], object]], float]
#: The ms that one execution on a stream takes.
Stopwatch = Callable[[CudaBackend, CaptureStream, Callable[[], object]], float]


@contextmanager
def between_events(driver: Driver, stream: int) -> Iterator[TimeLaunch]:
    """A function that returns the ms from before a launch on a stream to its end."""
    with ExitStack() as steps:
        begin, end = driver.event(timing=True), driver.event(timing=True)
        steps.callback(driver.destroy_event, begin)
        steps.callback(driver.destroy_event, end)

        def taken_ms(launch: Callable[[], object]) -> float:
            driver.record(begin, stream)
            launch()
            driver.record(end, stream)
            driver.synchronize(stream)
            return driver.elapsed_ms(begin, end)

        yield taken_ms


def graph_ms(backend: CudaBackend, stream: CaptureStream, run: Callable[[], object]) -> float:
    """The mean over replays one after the other, between two events.

    The lane need not be idle, but is timed with what runs on it.
    """
    driver = backend.driver
    kept: list[object] = []

    def body() -> None:
        kept[:] = [run()]

    def replays(count: int) -> None:
        for _ in range(count):
            driver.launch_graph(captured.executable, stream.handle)

    captured = stream.capture(body)
    with ExitStack() as steps:
        steps.callback(stream.destroy, captured)
        taken_ms = steps.enter_context(between_events(driver, stream.handle))
        taken_ms(lambda: replays(_WARM))
        return taken_ms(lambda: replays(_RUNS)) / _RUNS
