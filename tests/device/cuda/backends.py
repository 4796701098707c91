"""Backends of worker processes under test: whole GPUs, clients of MPS, GPUs that fail."""

from __future__ import annotations

import os
from typing import Final

from interlace.device.cuda.driver.errors import CudaError
from interlace.device.cuda.engine.backend import Backend
from tests.device.cuda.fake.backend import lenient, on
from tests.device.cuda.fake.core import H100
from tests.device.cuda.fake.driver import FakeDriver

#: SMs by GPC, such that 15 or 14 atoms of 8 keep to them.
FIFTEEN: Final = (16, 16, 16, 16, 18, 18, 18, 14)
FOURTEEN: Final = (18, 18, 18, 18, 18, 18, 12, 12)


def clients_sms(share_pct: int) -> int:
    """The SMs that MPS leaves a client, rounded up to whole ones."""
    return -(-H100.sms * share_pct // 100)


def whole(uuid: str) -> Backend:
    """All SMs, streams beside each other."""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == uuid
    return lenient(FakeDriver(H100._replace(uuid=uuid), pace="threads"))


def few_sms(uuid: str) -> Backend:
    """A GPU of two atoms."""
    return lenient(FakeDriver(H100._replace(uuid=uuid, sms=16), pace="threads"))


def _in_parts(uuid: str, clusters: tuple[int, ...]) -> Backend:
    driver = FakeDriver(H100._replace(uuid=uuid), pace="threads")
    driver.clusters, driver.mixes = clusters, False
    return lenient(driver)


def fifteen(uuid: str) -> Backend:
    """132 SMs of which the driver makes 15 atoms."""
    return _in_parts(uuid, FIFTEEN)


def fourteen(uuid: str) -> Backend:
    """132 SMs of which the driver makes 14 atoms."""
    return _in_parts(uuid, FOURTEEN)


def own_handles(uuid: str) -> Backend:
    """Libraries take streams of the context that their handles are of."""
    return on(FakeDriver(H100._replace(uuid=uuid), pace="threads"))


def no_convolutions(uuid: str) -> Backend:
    """Libraries take no stream of a green context, whatever their handles are of."""
    driver = FakeDriver(H100._replace(uuid=uuid), pace="threads")
    driver.libraries.refuse_green = True
    return on(driver)


def small(uuid: str) -> Backend:
    """A GPU of 16 MiB."""
    return lenient(FakeDriver(H100._replace(uuid=uuid, memory_bytes=16 << 20), pace="threads"))


def absent(uuid: str) -> Backend:
    """No GPU."""
    raise CudaError("cuInit", "CUDA_ERROR_NO_DEVICE")


def client(uuid: str) -> Backend:
    """The SMs that MPS leaves."""
    share_pct = int(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    board = H100._replace(uuid=uuid, sms=clients_sms(share_pct))
    return lenient(FakeDriver(board, pace="threads"))
