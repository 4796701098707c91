"""What of a file is in the page cache, and what on disk only: the kernel is asked (``mincore``)."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
#: Of the page cache; each is mapped at once.
LARGE_PAGE_BYTES: Final = 2 << 20
#: Pages of a file that are looked at, evenly over it.
_SAMPLES: Final = 64


def map_file(file: BinaryIO) -> mmap.mmap:
    """The whole file, mapped privately: pages are shared until written to.

    What has to come from the disk comes in large pages, of which each is one page fault: a model of
    47 MB has 24 of them, or 714.

    Raises:
        ValueError: it is too short to be one of tensors.
    """
    size = os.fstat(file.fileno()).st_size
    if size < 8:
        raise ValueError(f"{file.name}: {size} bytes is no safetensors file")
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    with suppress(OSError):  # a kernel without large pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def cached_pages(mapped: mmap.mmap, begin: int, nbytes: int) -> list[bool]:
    """Of some bytes' pages, which are in the page cache; all where the kernel does not tell."""
    first = begin // mmap.PAGESIZE * mmap.PAGESIZE
    pages = -(-(begin + nbytes - first) // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped)) + first
    length = min(pages * mmap.PAGESIZE, len(mapped) - first)
    if _LIBC.mincore(ctypes.c_void_p(start), ctypes.c_size_t(length), found):
        return [True] * pages
    return [bool(page & 1) for page in found]


def read_ahead(path: Path) -> None:
    """Have a file come into the page cache; the disk reads it while others go on.

    Raises:
        OSError: it is gone.
    """
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def cached_part(path: Path) -> float:
    """The part of a file that is in the page cache, by a sample of its pages.

    Raises:
        OSError, ValueError: it is gone, or empty.
    """
    with path.open("rb", buffering=0) as file, map_file(file) as mapped:
        places = {one * len(mapped) // _SAMPLES for one in range(_SAMPLES)}
        found = [cached_pages(mapped, place, 1)[0] for place in places]
    return sum(found) / len(found)


def drop_cached(path: Path) -> None:
    """Have a file's pages leave the page cache, where nobody has them mapped.

    Raises:
        OSError: it is gone.
    """
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
