"""Errors as their readers get them."""

from __future__ import annotations

from typing import Final

from interlace.core.errors import RepositoryError
from interlace.device.cuda.driver.errors import CudaError

_DETAIL_CHARS: Final = 2000


def error_text(what: str, error: BaseException) -> str:
    """What failed and why; an error that reads by itself stands by itself."""
    if isinstance(error, RepositoryError):
        return str(error)[:_DETAIL_CHARS]
    if isinstance(error, CudaError | MemoryError):
        return f"{what}: {error}"[:_DETAIL_CHARS]
    return f"{what}: {type(error).__name__}: {error}"[:_DETAIL_CHARS]
