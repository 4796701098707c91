"""Files: what of them is in the page cache, and that they are regular ones."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import BinaryIO, Final

from interlace.core.errors import RepositoryError

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
#: Of the page cache; each is mapped at once.
LARGE_PAGE_BYTES: Final = 2 << 20
#: Of what is read ahead at a time.
_PIECE_BYTES: Final = 16 << 20
#: ``MADV_POPULATE_READ``, which Linux has since 5.14 and the mmap module does not.
_POPULATE_READ: Final = 22
#: Pages of a file that are looked at, evenly over it.
_SAMPLES: Final = 64


def map_file(file: BinaryIO) -> mmap.mmap:
    """Map the whole file privately: pages are shared until written to.

    Data on disk is read in large pages, with one page fault each. A model of 47 MB takes 24 page
    faults instead of 714.

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


def read_ahead(path: Path, last: Sequence[tuple[int, int]] = ()) -> None:
    """Have a file come into the page cache, in large pages; this returns when it is there.

    ``last`` are places of it, where they begin and their bytes in order: the rest comes first.

    To be called in a thread of its own: the disk reads while others go on. ``POSIX_FADV_WILLNEED``
    would do neither: it stops after the disk's ``read_ahead_kb``, and brings small pages.

    Raises:
        OSError: it is gone, or cannot be read.
        ValueError: it is too short to be one of tensors.
    """
    with path.open("rb", buffering=0) as file, map_file(file) as mapped:
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        for begin, nbytes in _pieces(len(mapped), last):
            place = ctypes.c_void_p(start + begin), ctypes.c_size_t(nbytes)
            if _LIBC.madvise(*place, _POPULATE_READ):
                os.posix_fadvise(file.fileno(), begin, nbytes, os.POSIX_FADV_WILLNEED)
            mapped.madvise(mmap.MADV_DONTNEED, begin, nbytes)  # pages that nobody has may leave


def _pieces(size: int, last: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Pieces of whole large pages that make up a file, those of some places last."""
    ends = [0]
    for begin, nbytes in last:
        # Pages that others begin or end in are not of these.
        first, end = -(-begin // LARGE_PAGE_BYTES), (begin + nbytes) // LARGE_PAGE_BYTES
        if first < end:
            ends += [first * LARGE_PAGE_BYTES, end * LARGE_PAGE_BYTES]
    ends.append(size)
    runs = list(pairwise(ends))
    for begin, end in runs[::2] + runs[1::2]:
        for piece in range(begin, end, _PIECE_BYTES):
            yield piece, min(_PIECE_BYTES, end - piece)


@contextmanager
def reading_ahead(path: Path, last: Sequence[tuple[int, int]] = ()) -> Iterator[None]:
    """Run ``read_ahead`` in a thread during the block.

    Its errors are ignored: code that executes from the file meets them, too.
    """

    def read() -> None:
        with suppress(OSError, ValueError):
            read_ahead(path, last)

    thread = Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


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


_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def open_regular(file: Path) -> BinaryIO:
    """A regular file, or a link to one, open for reading. Others may have no end, or never begin.

    Raises:
        RepositoryError: it is none.
        OSError: it cannot be opened.
    """
    # Without O_NONBLOCK, opening a FIFO waits until it has a writer.
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        os.close(fd)
        raise RepositoryError(str(file), _KINDS.get(kind, "no file"), "a regular file")
    return os.fdopen(fd, "rb")
