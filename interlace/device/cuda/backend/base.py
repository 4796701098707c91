"""What the engine stands on: a driver, torch on its GPU, captures, our kernels, and threads.

cuDNN and cuBLAS keep a handle for each thread, made in the context that is current when the thread
first calls them. Work on a stream of a green context may be refused by a handle of another context.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from interlace.device.cuda.driver.api import CudaError, Driver, GreenContext
from interlace.device.cuda.driver.kernels import FOLDER, Kernels, load_kernels
from interlace.device.cuda.graphs.capture import GraphCapturer

#: Where libraries make their handles: in the GPU's primary context, or in the lane's green one.
LibraryContext = Literal["primary", "green"]
#: The same, or what a trial finds when a process starts (``backend.trials``).
LibraryChoice = Literal["auto", "primary", "green"]

T = TypeVar("T")


class LibraryThreads:
    """Torch works on the thread that asks for it: handles are of the primary context."""

    def run(self, green: GreenContext | None, job: Callable[[], T]) -> T:
        """What the job returns; the caller waits. ``None`` stands for streams on all SMs."""
        return job()

    def close(self) -> None:
        """End the threads; nothing of torch runs on the GPU afterwards."""


class ContextThreads(LibraryThreads):
    """A thread for each pair of a caller and a green context, which is current on it: handles are
    of that context. Each caller has threads of its own, so that loading does not delay serving.

    A thread stays until ``close``, its context's end or not: torch gives the handles of a thread
    that ended to the next new one, which may be another context's.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        # By identity: a context made later may be given the same handle.
        self._threads: dict[tuple[int, int], tuple[GreenContext, ThreadPoolExecutor]] = {}
        self._here = threading.local()

    def run(self, green: GreenContext | None, job: Callable[[], T]) -> T:
        if green is None or getattr(self._here, "green", None) is green:
            return job()

        def entered() -> T:
            self._here.green = green
            self._driver.enter(green)
            return job()

        return self._of(green).submit(entered).result()

    def close(self) -> None:
        for _, thread in self._threads.values():
            thread.shutdown()
        self._threads.clear()

    def _of(self, green: GreenContext) -> ThreadPoolExecutor:
        key = (threading.get_ident(), id(green))
        if key not in self._threads:
            name = f"torch on {green.sms} SMs"
            self._threads[key] = (green, ThreadPoolExecutor(1, thread_name_prefix=name))
        return self._threads[key][1]


def threads_for(context: LibraryContext, driver: Driver) -> LibraryThreads:
    """The threads that have libraries make their handles there."""
    return ContextThreads(driver) if context == "green" else LibraryThreads()


class CudaBackend(NamedTuple):
    """Everything that differs between a GPU and a test. ``torch_device`` as torch names it.

    ``torch_stream`` has torch's work of a thread go to a stream, on the CPU to where it always
    goes. ``convolve`` is some of it that needs a handle of a library. Torch works on a lane inside
    ``threads.run(lane.green, ...)``.
    """

    driver: Driver
    torch_device: str
    capturer: GraphCapturer
    kernels: Kernels
    torch_stream: Callable[[int], AbstractContextManager[object]]
    convolve: Callable[[], object]
    threads: LibraryThreads = LibraryThreads()


def make_backend(gpu: str) -> CudaBackend:
    """The backend of the GPU or MIG instance with this UUID, "" for the first one.

    It must be the first GPU that this process sees (``CUDA_VISIBLE_DEVICES``).

    Raises:
        CudaError: no GPU, another one, or no NVRTC to compile our kernels with.
    """
    import torch

    from interlace.device.cuda.driver.bound import BoundDriver
    from interlace.device.cuda.driver.kernels import image

    driver = BoundDriver()
    try:
        board = driver.board
        if gpu.startswith("GPU-") and board.uuid.removeprefix("GPU-") != gpu.removeprefix("GPU-"):
            raise CudaError("cuDeviceGet", "CUDA_ERROR_INVALID_DEVICE", f"{board.uuid}, not {gpu}")
        kernels = load_kernels(driver, image(board.capability, Path(FOLDER).expanduser()))
        torch.cuda.init()
        torch.cuda.set_device(0)
        make_deterministic()
    except BaseException:
        driver.close()
        raise
    capturer = GraphCapturer(0)

    def torch_stream(stream: int) -> AbstractContextManager[object]:
        outer: Any = torch.cuda.ExternalStream(stream, device="cuda:0")
        return torch.cuda.stream(outer)  # type: ignore[no-any-return]

    def convolve() -> object:
        image = torch.ones(1, 8, 8, 8, device="cuda:0")
        return torch.nn.functional.conv2d(image, torch.ones(8, 8, 3, 3, device="cuda:0"))

    return CudaBackend(driver, "cuda:0", capturer, kernels, torch_stream, convolve)


def make_deterministic() -> None:
    """Have torch compute the same bits in every lane of one size, and FP32 in FP32.

    No kernels chosen by a race (cuDNN's benchmark), none that add up in any order where torch has
    others, no TF32. For the whole process.
    """
    import torch

    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    # costs a kernel per tensor
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined,unused-ignore]
