"""Memory of this process given back to the system after a model was opened."""

from __future__ import annotations

import ctypes
import gc


def release_free_memory() -> None:
    """Collect garbage and hand the C library's free pages back, where it can (glibc).

    Opening a model leaves as much free heap behind as its weights took; without this it stays
    resident for the life of the worker.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
