"""Another GPU of this process: ``PeerGpu`` on ``cuda.bindings``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from cuda.bindings import driver as cu

from interlace.device.cuda.driver.api import CopyGroup
from interlace.device.cuda.driver.calls import PrimaryContext
from interlace.device.cuda.driver.copy_calls import enqueue
from interlace.device.cuda.driver.errors import CudaError

_NON_BLOCKING: Final = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
_NO_TIMING: Final = int(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)
_KNOWN: Final = "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"


class BoundPeer:
    """Its primary context is current for the length of each call alone: threads keep ``own``.

    Raises:
        CudaError: there is no such GPU, or ``own`` cannot read its memory.
    """

    def __init__(self, own: PrimaryContext, ordinal: int) -> None:
        self._there = PrimaryContext(ordinal)
        try:
            self._let_in(own)
        except BaseException:
            self._there.release()
            raise

    def allocate(self, nbytes: int) -> int:
        return int(self._call(cu.cuMemAlloc, nbytes))

    def free(self, address: int) -> None:
        self._call(cu.cuMemFree, address)

    def stream(self) -> int:
        return int(self._call(cu.cuStreamCreateWithPriority, _NON_BLOCKING, 0))

    def destroy_stream(self, stream: int) -> None:
        self._call(cu.cuStreamDestroy, stream)

    def event(self) -> int:
        return int(self._call(cu.cuEventCreate, _NO_TIMING))

    def destroy_event(self, event: int) -> None:
        self._call(cu.cuEventDestroy, event)

    def copy_groups(self, groups: Sequence[CopyGroup], stream: int) -> None:
        with self._there.pushed():
            enqueue(self._there, groups, stream)

    def synchronize(self, stream: int) -> None:
        self._call(cu.cuStreamSynchronize, stream)

    def close(self) -> None:
        self._there.release()

    def _let_in(self, own: PrimaryContext) -> None:
        if not own.call(cu.cuDeviceCanAccessPeer, own.device, self._there.device):
            why = "neither NVLink nor PCIe lets this GPU read the other's memory"
            raise CudaError("cuDeviceCanAccessPeer", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", why)
        with self._there.pushed() as context:
            pass
        try:
            own.call(cu.cuCtxEnablePeerAccess, context, 0)
        except CudaError as error:
            if error.name != _KNOWN:  # torch asks for it, too
                raise

    def _call(self, function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
        with self._there.pushed():
            return self._there.call(function, *arguments)
