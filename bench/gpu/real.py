"""The backend of the GPU that is measured: the first one."""

from __future__ import annotations

from interlace.device.cuda.backend.base import CudaBackend, make_backend


def open_backend() -> CudaBackend:
    """A driver, torch and our kernels in this process.

    Raises:
        CudaError: there is no GPU, or the driver refuses.
    """
    return make_backend("")
