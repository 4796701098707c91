"""What the engine stands on: a driver, torch on its GPU, captures, and our kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from interlace.device.cuda.backend.library_threads import LibraryThreads
from interlace.device.cuda.driver.api import CudaError, Driver
from interlace.device.cuda.driver.kernels import FOLDER, Kernels, load_kernels
from interlace.device.cuda.graphs.capture import GraphCapturer, TorchCapturer


class CudaBackend(NamedTuple):
    """Everything that differs between a GPU and a test. ``torch_device`` as torch names it.

    ``torch_stream`` has torch's work of a thread go to a stream, ``convolve`` is some of it that
    needs a handle of a library. Torch works on a lane inside
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
    capturer = TorchCapturer(0)

    def torch_stream(stream: int) -> AbstractContextManager[object]:
        outer: Any = torch.cuda.ExternalStream(stream, device="cuda:0")
        return torch.cuda.stream(outer)  # type: ignore[no-any-return]

    def convolve() -> object:
        image = torch.ones(1, 8, 8, 8, device="cuda:0")
        return torch.nn.functional.conv2d(image, torch.ones(8, 8, 3, 3, device="cuda:0"))

    return CudaBackend(driver, "cuda:0", capturer, kernels, torch_stream, convolve)


def on_stream(backend: CudaBackend, stream: int) -> AbstractContextManager[object]:
    """Torch's work of this thread goes to ``stream``, on the CPU to where it always goes."""
    return backend.torch_stream(stream)


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
