"""The fake capturer: a graph is its body, called again."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.kernels import load_kernels
from tests.device.cuda.fake.core import H100, Core
from tests.device.cuda.fake.driver import IMAGE, FakeDriver
from tests.device.cuda.fake.faults import Misuse
from tests.device.cuda.fake.handles import convolution
from tests.device.cuda.fake.streams import Graph, Pool

GRAPH_BYTES = 1 << 20


@dataclass
class FakeCaptured:
    """``CapturedGraph``."""

    executable: int
    pool: Pool
    driver: Core

    def close(self) -> None:
        self.driver.remove_graph(self.executable)


class FakeCapturer:
    """``Capturer`` on a fake driver.

    Body and replays run in PyTorch's inference mode if ``torch_too``. Launches of a body are
    recorded, not run; the framework's own work runs, as on a CPU it must.
    """

    def __init__(self, driver: Core, torch_too: bool = True) -> None:
        self.trims = 0  #: how often memory was given back
        self.worn = False
        self._driver = driver
        self._torch_too = torch_too
        self._one = threading.Lock()

    def capture(self, stream: int, pool: object | None, body: Callable[[], None]) -> FakeCaptured:
        """Record ``body``; ``pool`` is that of an earlier graph of the same stream.

        Raises:
            CudaError: a call in the body cannot be captured, or memory is out.
            Misuse: the body launches elsewhere, or the pool belongs to another stream.
        """
        shared = Pool(stream) if pool is None else pool
        if not isinstance(shared, Pool) or shared.stream != stream:
            raise Misuse("a graph pool belongs to the stream that it was first used on")
        whole = _inference(body) if self._torch_too else body
        follow = self._driver.libraries.on(stream)
        with self._one, self._driver.recording(stream) as recording, follow:
            whole()
        graph = Graph(whole, shared, recording.nodes, GRAPH_BYTES)
        return FakeCaptured(self._driver.add_graph(graph), shared, self._driver)

    def rehearse(self, stream: int, body: Callable[[], None]) -> None:
        """As ``capture``, and nothing is kept."""
        whole = _inference(body) if self._torch_too else body
        with self._one, self._driver.recording(stream, lax=True):
            whole()

    def trim(self) -> None:
        self.trims += 1
        self._driver.synchronised("trim")


def _inference(body: Callable[[], None]) -> Callable[[], None]:
    import torch

    def call() -> None:
        with torch.inference_mode():
            body()

    return call


def on(driver: FakeDriver) -> CudaBackend:
    """A backend on this driver, with CPU tensors as device memory."""
    kernels = load_kernels(driver, IMAGE)
    return CudaBackend(
        driver, "cpu", FakeCapturer(driver), kernels, driver.libraries.on, convolution
    )


def at_once(*_: object) -> CudaBackend:
    """Work runs inside the call that launches it; there is a second GPU."""
    driver = FakeDriver(H100)
    driver.peers.count = 1
    return lenient(driver)


def on_threads(*_: object) -> CudaBackend:
    """Each stream runs on a thread, beside the others."""
    return lenient(FakeDriver(H100, pace="threads"))


def lenient(driver: FakeDriver) -> CudaBackend:
    """A backend whose libraries take any stream."""
    driver.libraries.lenient = True
    return on(driver)
