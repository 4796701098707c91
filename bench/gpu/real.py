"""The backend of the GPU that is measured: the first one."""

from __future__ import annotations

from importlib import import_module

from interlace.device.cuda.discovery import discover
from interlace.device.cuda.engine.backend import Backend
from interlace.device.cuda.settings import BACKEND


def open_backend() -> Backend:
    """A driver, torch and our kernels in this process.

    Raises:
        NoGpus: there is no GPU.
        CudaError: the driver refuses.
    """
    module, _, name = BACKEND.partition(":")
    made: Backend = getattr(import_module(module), name)(discover()[0].uuid)
    return made
