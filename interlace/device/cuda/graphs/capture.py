"""Graphs: work recorded once on a stream and launched with one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

#: Calls of other threads stay legal meanwhile: they launch while we capture.
_MODE: Final = "thread_local"
#: So are this thread's own, such as loading a kernel: for captures that are thrown away.
_LAX_MODE: Final = "relaxed"


class CapturedGraph:
    """A ``torch.cuda.CUDAGraph`` that can be launched, and that torch keeps the memory of.

    The next graph of its stream is captured with its ``pool``, to share memory with it.
    """

    def __init__(self, graph: Any, pool: tuple[int, int]) -> None:
        self._graph = graph
        self.executable: int = graph.raw_cuda_graph_exec()
        self.pool: object = pool

    def close(self) -> None:
        """Destroy it. It does not run, and is not launched again."""
        self._graph.reset()


class GraphCapturer:
    """Records what a body launches on a stream through torch, whose allocator must know of it.

    Nothing of it runs. Graphs of one pool share memory, so they must never run side by side, and
    must be captured on one stream. One capture at a time in a process; others wait. It is ``worn``
    once a capture left something behind that goes with the process alone (torch 2.11 to 2.13).

    ``torch.cuda.graph`` is not used: it synchronises the device and empties caches, which those
    would feel who are being served.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._one = threading.Lock()
        self.worn = False

    def capture(self, stream: int, pool: object | None, body: Callable[[], None]) -> CapturedGraph:
        import torch

        shared: Any = torch.cuda.graph_pool_handle() if pool is None else pool
        with self._on(stream):
            graph = self._recorded(shared, _MODE, body)
            graph.instantiate()
            torch._C._cuda_clearCublasWorkspaces()
            return CapturedGraph(graph, shared)

    def rehearse(self, stream: int, body: Callable[[], object]) -> None:
        """Record ``body`` and throw it away, so that what it loads when it first captures is there.

        Kernels are loaded at their first launch, which may not be inside a capture; and some models
        take another path in a capture than outside.
        """
        import torch

        with self._on(stream):
            graph = self._recorded(torch.cuda.graph_pool_handle(), _LAX_MODE, body)
            torch._C._cuda_clearCublasWorkspaces()
            graph.reset()

    def trim(self) -> None:
        """Give memory that graphs and eager work left behind back to the GPU."""
        import torch

        with self._one:
            torch.cuda.empty_cache()

    @contextmanager
    def _on(self, stream: int) -> Iterator[None]:
        import torch

        outer = torch.cuda.ExternalStream(stream, device=self._device)
        with self._one, torch.cuda.device(self._device), torch.cuda.stream(outer):
            yield

    def _recorded(self, pool: Any, mode: str, body: Callable[[], object]) -> Any:
        import torch

        # Workspaces of cuBLAS then come from the pool, and live as long as its graphs.
        torch._C._cuda_clearCublasWorkspaces()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        graph.capture_begin(pool=pool, capture_error_mode=mode)
        try:
            with torch.inference_mode():
                body()
        except BaseException:
            self._abandon(graph, pool)
            raise
        self._end(graph, pool)
        return graph

    def _end(self, graph: Any, pool: tuple[int, int]) -> None:
        try:
            graph.capture_end()
        except BaseException:
            self._repair(graph, pool)
            raise

    def _abandon(self, graph: Any, pool: tuple[int, int]) -> None:
        try:
            graph.capture_end()
        except Exception:  # the stream says again that the capture is void
            self._repair(graph, pool)
        else:
            graph.reset()

    def _repair(self, graph: Any, pool: tuple[int, int]) -> None:
        # If the driver ends a capture with an error, ``capture_end`` leaves the allocator believing
        # that it goes on, and ``reset`` does not release the pool. The allocator of page-locked
        # memory goes on believing it: nothing mends that but a new process.
        import torch

        self.worn = True
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self._device, pool)
            torch._C._cuda_releasePool(self._device, pool)
        graph.reset()
