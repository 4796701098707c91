"""Backends of worker processes under test: whole GPUs, clients of MPS, GPUs that fail."""

from __future__ import annotations

import os
from collections.abc import Callable

from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.engine.backend import Backend
from tests.device.cuda.fake.backend import on
from tests.device.cuda.fake.capture import FakeCaptured, FakeCapturer
from tests.device.cuda.fake.core import H100
from tests.device.cuda.fake.driver import FakeDriver


def clients_sms(share_pct: int) -> int:
    """The SMs that MPS leaves a client, rounded up to whole ones."""
    return -(-H100.sms * share_pct // 100)


def whole(uuid: str) -> Backend:
    """All SMs, streams beside each other."""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == uuid
    return on(FakeDriver(H100._replace(uuid=uuid), pace="threads"))


def few_sms(uuid: str) -> Backend:
    """A GPU of two atoms."""
    return on(FakeDriver(H100._replace(uuid=uuid, sms=16), pace="threads"))


def small(uuid: str) -> Backend:
    """A GPU of 16 MiB."""
    return on(FakeDriver(H100._replace(uuid=uuid, memory_bytes=16 << 20), pace="threads"))


class _Void(FakeCapturer):
    """The driver ends the first capture with an error."""

    def capture(self, stream: int, pool: object | None, body: Callable[[], None]) -> FakeCaptured:
        if not self.worn:
            self.worn = True
            raise CudaError("cuStreamEndCapture", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
        return super().capture(stream, pool, body)


def void(uuid: str) -> Backend:
    """A first capture that fails."""
    backend = whole(uuid)
    assert isinstance(backend.driver, FakeDriver)
    return backend._replace(capturer=_Void(backend.driver))


def absent(uuid: str) -> Backend:
    """No GPU."""
    raise CudaError("cuInit", "CUDA_ERROR_NO_DEVICE")


def client(uuid: str) -> Backend:
    """The SMs that MPS leaves."""
    share_pct = int(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    board = H100._replace(uuid=uuid, sms=clients_sms(share_pct))
    return on(FakeDriver(board, pace="threads"))
