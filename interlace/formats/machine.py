"""What formats ask of the machine: the name of its processor, memory given back to it."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import platform
from pathlib import Path
from typing import Final

_CPUINFO: Final = Path("/proc/cpuinfo")


def machine_key(*versions: str) -> str:
    """16 hex digits that change with the processor's instruction set or any of ``versions``."""
    flags = _first("flags", "Features") or platform.processor()
    text = "\n".join((platform.machine(), " ".join(sorted(flags.split())), *versions))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def processor_name() -> str:
    """The processor's name as the kernel tells it; empty if it does not."""
    return _first("model name")


def _first(*keys: str) -> str:
    """The value of the first line with one of these keys; empty if there is none."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in keys:
            return value.strip()
    return ""


def anonymous_bytes() -> int:
    """Memory of this process without files behind it. Takes milliseconds in a large process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def release_free_memory() -> None:
    """Collect garbage and hand the C library's free pages back, where it can (glibc).

    Opening a model leaves as much free heap behind as its weights took; without this it stays
    resident for the life of the worker.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


#: Parameters of mallopt(3), and values: the largest that glibc takes for the second.
_KEPT: Final = {-1: 128 << 20, -3: 32 << 20}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD


def keep_free_memory() -> None:
    """Have the C library keep freed arrays of up to 32 MiB for the next ones (glibc).

    By default each array above 128 KiB is mapped anew, and the kernel clears its pages: for a model
    of a few operations on pictures, that takes longer than these. At most 128 MiB stay free.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, nbytes in _KEPT.items():
            mallopt(parameter, nbytes)
