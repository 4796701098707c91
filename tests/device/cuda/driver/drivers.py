"""Drivers under test: the fake one, and the one of this machine if it has a GPU."""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from interlace.device.cuda.driver import kernels
from interlace.device.cuda.driver.api import CudaError, Driver, MappedBlock
from interlace.device.cuda.driver.kernels import Kernels, load_kernels
from tests.device.cuda.fake import IMAGE, FakeDriver

FAKE, REAL = "fake", "real"


class Rig:
    """A driver with our kernels, a stream, and memory that both sides see."""

    def __init__(self, kind: str) -> None:
        self.driver: Driver = FakeDriver() if kind == FAKE else real()
        image = IMAGE if kind == FAKE else cubin(self.driver.board.capability)
        self.kernels: Kernels = load_kernels(self.driver, image)
        self.stream = self.driver.stream()
        self.held: list[MappedBlock] = []

    def mapped(self, nbytes: int) -> tuple[MappedBlock, np.ndarray]:
        """Mapped memory and the host's view of its bytes, zero at first."""
        made = self.driver.allocate_mapped(nbytes)
        self.held.append(made)
        view = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(made.host))
        view[:] = 0
        return made, view

    def words(self, *values: int) -> MappedBlock:
        """Mapped 64-bit words."""
        made, view = self.mapped(8 * len(values))
        view.view(np.uint64)[:] = values
        return made

    def launch(self, name: str, *words: int, blocks: int = 2, threads: int = 64) -> None:
        """Launch one of our kernels and wait for it."""
        kernel = getattr(self.kernels, name)
        self.driver.launch(kernel, (blocks, 1, 1), (threads, 1, 1), self.stream, words)
        self.driver.synchronize(self.stream)

    def close(self) -> None:
        self.driver.destroy_stream(self.stream)
        self.driver.unload_kernels(self.kernels.module)
        for one in self.held:
            self.driver.free_mapped(one)
        self.driver.close()


def real() -> Driver:
    """The driver of this machine.

    Raises:
        CudaError: there is no GPU.
        ImportError: the bindings are not installed.
    """
    from interlace.device.cuda.driver.bound import BoundDriver

    return BoundDriver(0)


def missing() -> str:
    """Why there is no real driver; empty if there is one."""
    try:
        real().close()
    except (CudaError, ImportError) as error:
        return f"no GPU: {error}"
    return ""


def cubin(capability: tuple[int, int]) -> bytes:
    """Our kernels by NVRTC, or by nvcc where that is what is there."""
    try:
        return kernels.image(capability, None)
    except CudaError:
        if shutil.which("nvcc") is None:
            raise
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "kernels.cubin"
        compile_by_nvcc(kernels.source(), made, f"sm_{capability[0]}{capability[1]}")
        return made.read_bytes()


def compile_by_nvcc(text: str, target: Path, arch: str) -> None:
    """Compile CUDA C++ to a cubin; warnings are errors."""
    source = target.with_suffix(".cu")
    source.write_text(text)
    flags = [f"-arch={arch}", "-cubin", "-std=c++17", "-Werror", "all-warnings"]
    done = subprocess.run(
        ["nvcc", *flags, "-o", str(target), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
