"""Device time of single pieces of work: many times in one graph, between two events."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from interlace.device.cuda.backend.base import CudaBackend, on_stream
from interlace.device.cuda.lanes import Lane

GpuWork = Callable[[], None]


class GraphTimer:
    """Time on the GPU, without what the CPU takes to launch.

    ``repeats`` executions in a graph, launched ``takes`` times; the median launch counts.

    Cold executions each follow a write of ``flush_bytes``, more than the L2 holds, whose own time
    is taken off.
    """

    def __init__(
        self,
        backend: CudaBackend,
        lane: Lane,
        repeats: int = 10,
        takes: int = 5,
        flush_bytes: int = 128 << 20,
    ) -> None:
        import torch

        self.backend = backend
        self.lane = lane
        self.repeats = repeats
        self.takes = takes
        with on_stream(backend, lane.stream):
            self._scratch = torch.zeros(flush_bytes // 4, device=backend.torch_device)
        self._flush_ms: float | None = None

    def warm_ms(self, body: GpuWork) -> float:
        """One execution right after the same."""
        return self._graph_ms(body) / self.repeats

    def cold_ms(self, body: GpuWork) -> float:
        """One execution that finds nothing of its own in the L2."""
        if self._flush_ms is None:
            self._flush_ms = self._graph_ms(self._flush)

        def both() -> None:
            self._flush()
            body()

        return max(0.0, self._graph_ms(both) - self._flush_ms) / self.repeats

    def copy_ms(self, target: int, source: int, nbytes: int) -> float:
        """One copy by a copy engine."""
        driver = self.backend.driver

        def copies() -> None:
            for _ in range(self.repeats):
                driver.copy(target, source, nbytes, self.lane.stream)

        return self._median_ms(copies) / self.repeats

    def _graph_ms(self, body: GpuWork) -> float:
        stream = self.lane.stream

        def repeated() -> None:
            for _ in range(self.repeats):
                body()

        with on_stream(self.backend, stream):
            body()  # libraries make their handles and choose their kernels outside of captures
        self.backend.driver.synchronize(stream)
        captured = self.backend.capturer.capture(stream, None, repeated)
        try:
            return self._median_ms(
                lambda: self.backend.driver.launch_graph(captured.executable, stream)
            )
        finally:
            captured.close()

    def _median_ms(self, launch: GpuWork) -> float:
        driver, stream = self.backend.driver, self.lane.stream
        begin, end = driver.event(timing=True), driver.event(timing=True)
        taken: list[float] = []
        try:
            for take in range(self.takes + 1):
                driver.record(begin, stream)
                launch()
                driver.record(end, stream)
                driver.synchronize(stream)
                if take:  # the first one uploads
                    taken.append(driver.elapsed_ms(begin, end))
        finally:
            driver.destroy_event(begin)
            driver.destroy_event(end)
        return statistics.median(taken)

    def _flush(self) -> None:
        self._scratch.fill_(1.0)
