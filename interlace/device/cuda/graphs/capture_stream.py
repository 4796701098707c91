"""Where the graphs of a lane are captured: on its SMs, but not on the stream that serves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.graphs.capture import CapturedGraph
from interlace.device.cuda.lanes import Lane


class CaptureStream:
    """A stream of the lane's SMs, and the pool of memory that all graphs of the lane share.

    A launch on a stream that is being captured would become part of the graph, so the lane's own
    stream is never captured; a graph runs on the SMs that it was captured on wherever it is
    launched (CUDA Programming Guide 4.6.5). It is kept in ``lane.pool`` while there are graphs.
    """

    def __init__(self, backend: CudaBackend, lane: Lane) -> None:
        self._backend = backend
        self._lane = lane
        self._graphs = 0
        self._pool: object | None = None
        self.stream = backend.driver.stream(lane.green, lane.priority)

    def capture(self, body: Callable[[], None]) -> CapturedGraph:
        """
        Raises:
            Exception: whatever ``body`` raises, also that it does what cannot be captured.
        """
        captured = self._backend.capturer.capture(self.stream, self._pool, body)
        self._pool = captured.pool
        self._graphs += 1
        return captured

    def rehearse(self, body: Callable[[], object]) -> None:
        """As ``Capturer.rehearse``."""
        self._backend.capturer.rehearse(self.stream, body)

    def destroy(self, captured: CapturedGraph) -> None:
        """A graph that does not run. The last one takes the pool with it."""
        captured.close()
        self._graphs -= 1
        if not self._graphs:
            self._pool = None

    def leave(self) -> None:
        """Give the stream back if no graph is left."""
        if not self._graphs and self._lane.pool is self:
            self._lane.pool = None
            with suppress(CudaError):  # a GPU that failed: its process ends anyway
                self._backend.driver.destroy_stream(self.stream)


def capture_stream_of(backend: CudaBackend, lane: Lane) -> CaptureStream:
    """The lane's side, made if there is none.

    Raises:
        CudaError: the driver refused.
    """
    if isinstance(lane.pool, CaptureStream):
        return lane.pool
    side = CaptureStream(backend, lane)
    lane.pool = side
    return side
