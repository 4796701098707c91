"""The stream on which the graphs of a lane are captured: on its SMs, beside the one that serves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import GreenContext
from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.graphs.capture import CapturedGraph


class CaptureStream:
    """A second stream on a lane's SMs, and the memory pool that all graphs of the lane share.

    A launch on a stream that is being captured would become part of the graph, so the lane's own
    stream is never captured; a graph runs on the SMs that it was captured on wherever it is
    launched (CUDA Programming Guide 4.6.5). ``handle`` is the driver's stream. ``on_end`` is called
    when the stream is given back.
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
