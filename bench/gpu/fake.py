"""The stand-in of a dry run: the fake driver of the tests, on host memory."""

from __future__ import annotations

from interlace.device.cuda.backend.base import CudaBackend
from tests.device.cuda.fake.backend import at_once


def open_backend() -> CudaBackend:
    """A backend without a GPU."""
    return at_once()
