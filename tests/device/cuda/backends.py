"""Backends of worker processes under test: whole GPUs, clients of MPS, GPUs that fail."""

import os
from collections.abc import Callable, Sequence
from typing import Final

from interlace.device.cuda.backend.base import CudaBackend
from interlace.device.cuda.driver.api import CudaError
from tests.device.cuda.fake.capture import FakeCaptured, FakeCapturer, lenient, on
from tests.device.cuda.fake.core import H100
from tests.device.cuda.fake.driver import FakeDriver

#: SMs by GPC, such that 15 or 14 atoms of 8 keep to them.
FIFTEEN: Final = (16, 16, 16, 16, 18, 18, 18, 14)
FOURTEEN: Final = (18, 18, 18, 18, 18, 18, 12, 12)


def clients_sms(share_pct: int) -> int:
    """The SMs that MPS leaves a client, rounded up to whole ones."""
    return -(-H100.sms * share_pct // 100)


def driver_of(uuid: str, **board: int) -> FakeDriver:
    """Streams beside each other on another board."""
    return FakeDriver(H100._replace(uuid=uuid, **board), pace="threads")


def whole(uuid: str) -> CudaBackend:
    """All SMs."""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == uuid
    return lenient(driver_of(uuid))


PEER: Final = "GPU-fake-1"


def paired(uuid: str) -> CudaBackend:
    """A GPU whose process sees another one behind it."""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == f"{uuid},{PEER}"
    driver = driver_of(uuid)
    driver.peers.count = 1
    return lenient(driver)


NOTES: Final = "INTERLACE_TEST_NOTES"
#: Seconds that a row of a graph takes on all SMs of ``proportional``.
ROW_S: Final = 0.01


def proportional(uuid: str) -> CudaBackend:
    """A GPU whose time is that of the rows a graph was captured for, over the SMs it has.

    Captures are noted in the file that ``NOTES`` names, as is every model that is opened.
    """
    driver = driver_of(uuid)

    def cost_s(name: str, arguments: Sequence[int], sms: int) -> float:
        return arguments[4] * ROW_S * H100.sms / sms if name == "gather_rows" else 0.0

    driver.cost_s = cost_s
    return on(driver)._replace(capturer=_Noting(driver))


class _Noting(FakeCapturer):
    """A capturer that counts."""

    def capture(self, stream: int, pool: object | None, body: Callable[[], None]) -> FakeCaptured:
        note("capture")
        return super().capture(stream, pool, body)


def note(what: str) -> None:
    """A line in the file that ``NOTES`` names."""
    with open(os.environ[NOTES], "a") as file:
        file.write(f"{what}\n")


def few_sms(uuid: str) -> CudaBackend:
    """A GPU of two atoms."""
    return lenient(driver_of(uuid, sms=16))


def _in_parts(uuid: str, clusters: tuple[int, ...]) -> CudaBackend:
    driver = driver_of(uuid)
    driver.clusters, driver.mixes = clusters, False
    return lenient(driver)


def fifteen(uuid: str) -> CudaBackend:
    """132 SMs of which the driver makes 15 atoms."""
    return _in_parts(uuid, FIFTEEN)


def fourteen(uuid: str) -> CudaBackend:
    """132 SMs of which the driver makes 14 atoms."""
    return _in_parts(uuid, FOURTEEN)


def own_handles(uuid: str) -> CudaBackend:
    """Libraries take streams of the context that their handles are of."""
    return on(driver_of(uuid))


def no_convolutions(uuid: str) -> CudaBackend:
    """Libraries take no stream of a green context, whatever their handles are of."""
    driver = driver_of(uuid)
    driver.libraries.refuse_green = True
    return on(driver)


def small(uuid: str) -> CudaBackend:
    """A GPU of 16 MiB."""
    return lenient(driver_of(uuid, memory_bytes=16 << 20))


class _Void(FakeCapturer):
    """The driver ends the first capture with an error."""

    def capture(self, stream: int, pool: object | None, body: Callable[[], None]) -> FakeCaptured:
        if not self.worn:
            self.worn = True
            raise CudaError("cuStreamEndCapture", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
        return super().capture(stream, pool, body)


def void(uuid: str) -> CudaBackend:
    """A first capture that fails."""
    backend = whole(uuid)
    assert isinstance(backend.driver, FakeDriver)
    return backend._replace(capturer=_Void(backend.driver))


def absent(uuid: str) -> CudaBackend:
    """No GPU."""
    raise CudaError("cuInit", "CUDA_ERROR_NO_DEVICE")


def client(uuid: str) -> CudaBackend:
    """The SMs that MPS leaves."""
    share_pct = int(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    return lenient(driver_of(uuid, sms=clients_sms(share_pct)))
