"""The real capturer against a torch whose CUDA part is stood in for: order, modes, repair."""

import inspect
import threading
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from interlace.device.cuda.graphs.capture import GraphCapturer


class FakeCuda:
    """``torch.cuda`` as far as captures need it; ``log`` is what was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[Any] = []
        self.void = False  #: the driver ends the capture with an error
        self.threads: set[int] = set()
        for name in ("device", "stream"):
            monkeypatch.setattr(torch.cuda, name, self._entered(name))
        monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: handle)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: self.log.append("empty_cache"))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda keep_graph: FakeGraph(self, keep_graph))
        for name in ("clearCublasWorkspaces", "endAllocateToPool", "releasePool"):
            call = lambda *arguments, name=name: self.log.append((name, *arguments))  # noqa: E731
            monkeypatch.setattr(torch._C, f"_cuda_{name}", call, raising=False)

    def _entered(self, name: str) -> Any:
        @contextmanager
        def enter(what: object) -> Any:
            self.log.append((name, what))
            yield

        return enter


class FakeGraph:
    def __init__(self, cuda: FakeCuda, keep_graph: bool) -> None:
        assert keep_graph  # the executable is ours to launch
        self._cuda = cuda

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        self._cuda.log.append(("begin", pool, capture_error_mode))
        self._cuda.threads.add(threading.get_ident())
        assert len(self._cuda.threads) == 1, "two captures at once"

    def capture_end(self) -> None:
        self._cuda.threads.clear()
        if self._cuda.void:
            raise RuntimeError("CUDA error: operation failed due to a previous error")
        self._cuda.log.append("end")

    def instantiate(self) -> None:
        self._cuda.log.append("instantiate")

    def raw_cuda_graph_exec(self) -> int:
        return 99

    def reset(self) -> None:
        self._cuda.log.append("reset")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def fail() -> None:
    raise ValueError("the model's own")


def test_a_body_that_raises_ends_the_capture(cuda: FakeCuda) -> None:
    with pytest.raises(ValueError, match="own"):
        GraphCapturer(0).capture(5, None, fail)
    assert cuda.log[-2:] == ["end", "reset"]
    assert ("releasePool", 0, (0, 7)) not in cuda.log  # reset does it


@pytest.mark.parametrize("body", [fail, lambda: None])
def test_a_void_capture_leaves_the_allocator_well(cuda: FakeCuda, body: Any) -> None:
    cuda.void = True
    one = GraphCapturer(0)
    assert not one.worn
    with pytest.raises((ValueError, RuntimeError)):
        one.capture(5, None, body)
    assert one.worn
    assert cuda.log[-3:] == [("endAllocateToPool", 0, (0, 7)), ("releasePool", 0, (0, 7)), "reset"]
    cuda.void = False
    GraphCapturer(0).capture(5, None, lambda: None)  # the lock is free again


def test_one_capture_at_a_time(cuda: FakeCuda) -> None:
    """A second thread's capture waits until the first has ended."""
    one = GraphCapturer(0)
    inside, leave = threading.Event(), threading.Event()

    def slow() -> None:
        inside.set()
        assert leave.wait(10)

    first = threading.Thread(target=lambda: one.capture(5, None, slow))
    first.start()
    assert inside.wait(10)
    second = threading.Thread(target=lambda: one.capture(6, None, lambda: None))
    second.start()
    trimmed = threading.Thread(target=one.trim)
    trimmed.start()
    second.join(0.1)
    assert second.is_alive()
    assert "empty_cache" not in cuda.log  # nor is memory given back under a capture
    leave.set()
    for thread in (first, second, trimmed):
        thread.join(10)
        assert not thread.is_alive()


def test_torch_has_what_is_called() -> None:
    """Names of the installed torch; the same are in the stubs of torch 2.11."""
    graph = torch.cuda.CUDAGraph
    for name in ("capture_begin", "capture_end", "instantiate", "raw_cuda_graph_exec", "reset"):
        assert callable(getattr(graph, name))
    parameters = inspect.signature(graph.capture_begin).parameters
    assert {"pool", "capture_error_mode"} <= set(parameters)
    assert hasattr(torch._C, "_construct_storage_from_data_pointer")
    assert hasattr(torch.cuda.memory, "_cuda_endAllocateToPool")
    assert hasattr(torch.cuda.memory, "_cuda_releasePool")
