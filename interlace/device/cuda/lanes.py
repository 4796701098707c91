"""Lanes: the ways onto a GPU's SMs. Nothing of ours runs on a stream outside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import CudaError, Driver, GreenContext
from interlace.device.cuda.graphs.capture import CapturedGraph


class CaptureStream:
    """A second stream on a lane's SMs, and the memory pool that all graphs of the lane share.

    A launch on a stream that is being captured would become part of the graph, so the lane's own
    stream is never captured. A graph runs on the SMs that it was captured on, wherever it is
    launched (CUDA Programming Guide, 4.6.5). ``handle`` is the driver's stream. ``on_end`` is
    called when the stream is given back.
    """

    def __init__(
        self, backend: CudaBackend, green: GreenContext | None, on_end: Callable[[], None]
    ) -> None:
        self._backend = backend
        self._on_end = on_end
        self._graphs = 0
        self._pool: object | None = None
        self._open = True
        self.handle = backend.driver.stream(green)

    def capture(self, body: Callable[[], None]) -> CapturedGraph:
        """
        Raises:
            Exception: whatever ``body`` raises, also that it does what cannot be captured.
        """
        captured = self._backend.capturer.capture(self.handle, self._pool, body)
        self._pool = captured.pool
        self._graphs += 1
        return captured

    def rehearse(self, body: Callable[[], object]) -> None:
        """As ``Capturer.rehearse``."""
        self._backend.capturer.rehearse(self.handle, body)

    def destroy(self, captured: CapturedGraph) -> None:
        """A graph that does not run. The last one takes the pool with it."""
        captured.close()
        self._graphs -= 1
        if not self._graphs:
            self._pool = None

    def leave(self) -> None:
        """Give the stream back if no graph is left."""
        if not self._graphs and self._open:
            self._open = False
            self._on_end()
            with suppress(CudaError):  # a GPU that failed: its process ends anyway
                self._backend.driver.destroy_stream(self.handle)


@dataclass(slots=True, eq=False)
class Lane:
    """A stream, the SMs behind it, and the stream that its graphs are captured on.

    A lane outlives its partition: while it is idle (``name is None``) it keeps what was captured on
    it, so the next partition that gets it runs at once. ``index`` is its number among the lanes of
    the process that exist now, 0 for the staging lane. ``mask`` are its atoms, 0 without green
    contexts; ``units`` are its SMs by number, ``sms`` how many the driver granted, read back.
    ``capture_stream`` is set while graphs of the lane exist.
    """

    index: int
    share_pct: int
    sms: int
    stream: int
    mask: int = 0
    green: GreenContext | None = None
    name: str | None = None
    capture_stream: CaptureStream | None = None
    units: tuple[int, ...] = ()

    def captures_on(self, backend: CudaBackend) -> CaptureStream:
        """The stream that its graphs are captured on, made if there is none."""
        if self.capture_stream is None:
            made = CaptureStream(backend, self.green, self._capture_ended)
            self.capture_stream = made
        return self.capture_stream

    def _capture_ended(self) -> None:
        self.capture_stream = None


class Lanes(ABC):
    """The lanes of one process, and which partition has which."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lanes: dict[int, Lane] = {}
        self._aside: Lane | None = None

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """All that exist, idle ones too, without the staging lane."""
        return tuple(self._lanes.values())

    @property
    def blocks(self) -> tuple[int, int]:
        """Into how many blocks of how many SMs the GPU is cut; (0, 0) if it is not."""
        return 0, 0

    @abstractmethod
    def aside(self) -> Lane:
        """The staging lane: for work that belongs to no partition, such as copying inputs."""

    @abstractmethod
    def carve(self, name: str, share_pct: int, leaving: Collection[str] = ()) -> Lane:
        """A lane for a partition. It may overlap partitions that are ``leaving``.

        Raises:
            ValueError: no such share, or a partition of that name exists.
            CudaError: the driver refused; what was made for it is given back.
        """

    def release(self, name: str) -> None:
        """Have the lane of a partition idle: nothing runs on it.

        Raises:
            ValueError: no such partition.
        """
        for lane in self.lanes:
            if lane.name == name:
                lane.name = None
                return
        raise ValueError(f"no partition '{name}'")

    def retire(self, lane: Lane) -> None:
        """Destroy an idle lane; what was captured on it is destroyed before.

        Raises:
            ValueError: it is in use, or destroyed already.
            CudaError: the driver refused; the lane is forgotten all the same.
        """
        if self._lanes.get(lane.index) is not lane:
            raise ValueError(f"lane {lane.index} does not exist any more")
        if lane.name is not None:
            raise ValueError(f"lane {lane.index} is in use by partition '{lane.name}'")
        del self._lanes[lane.index]
        self._driver.destroy_stream(lane.stream)

    def close(self) -> None:
        """Destroy all lanes: first the streams, then what they belong to. Nothing runs any more.

        Raises:
            CudaError: the driver refused at least once; everything was tried.
        """
        aside, self._aside = self._aside, None
        lanes = [*self.lanes, *([aside] if aside else [])]
        self._lanes.clear()
        with ExitStack() as steps:  # every step is tried
            for lane in lanes:
                steps.callback(self._driver.destroy_stream, lane.stream)

    def _index(self) -> int:
        """The smallest number from 1 on that no lane has."""
        return next(number for number in count(1) if number not in self._lanes)

    def _add(self, lane: Lane) -> Lane:
        self._lanes[lane.index] = lane
        return lane

    def _idle(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane.name is None]

    def _check_new(self, name: str) -> None:
        """Raises ValueError if a partition of that name exists."""
        if any(lane.name == name for lane in self.lanes):
            raise ValueError(f"partition '{name}' exists already")


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
