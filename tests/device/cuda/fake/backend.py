"""Makers of a fake backend, by name for worker processes."""

from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.kernels import load_kernels
from tests.device.cuda.fake.capture import FakeCapturer
from tests.device.cuda.fake.core import H100
from tests.device.cuda.fake.driver import IMAGE, FakeDriver
from tests.device.cuda.fake.handles import convolution


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
