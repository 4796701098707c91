"""Entries of the weights folder: written aside, put in place at once, never changed after.

Files carry a checksum, for what is not changed by us may be damaged all the same.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from interlace.formats.page_cache import LARGE_PAGE_BYTES, cached_pages, map_file, open_regular

_LOG = logging.getLogger(__name__)

_PREFIX: Final = ".writing-"
_ABANDONED_S: Final = 900.0
#: How temporary folders begin that are locked while they are in use, from long before this age on.
_LOCKED: Final = "interlace-locked-"
_LOCKED_S: Final = 1.0


@contextmanager
def temporary_folder(name: str) -> Iterator[str]:
    """A folder of this process; what killed processes of this user left is removed first.

    Raises:
        OSError: it cannot be made.
    """
    _sweep(Path(tempfile.gettempdir()), _LOCKED, _LOCKED_S)
    made = tempfile.TemporaryDirectory(prefix=f"{_LOCKED}{name}-", ignore_cleanup_errors=True)
    with made as folder, _locked(Path(folder)):
        yield folder


def publish(path: Path, write: Callable[[Path], None]) -> None:
    """Have ``write`` make the file or folder ``path`` under another name, then put it in place.

    If somebody else was faster, theirs stays. What a killed process left half-written is removed
    once it is a quarter of an hour old.

    Raises:
        OSError: no space or no permission; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent, _PREFIX, _ABANDONED_S)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=path.parent) as aside:
        draft = Path(aside) / path.name
        with _locked(draft.parent):
            write(draft)
            _place(draft, path)


def discard_broken(path: Path, is_whole: Callable[[Path], bool]) -> None:
    """Remove a folder that is not whole, so that it can be published again.

    One that somebody else has published meanwhile stays: only one looks and removes at a time.
    """
    if not path.exists():
        return
    with _locked(path.parent, fcntl.LOCK_EX):
        if is_whole(path):
            return
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def checksum(path: Path, nbytes: int) -> int:
    """The CRC-32 of a file's first ``nbytes``; the page cache keeps no more of it than before.

    Raises:
        OSError: the file cannot be read.
        RepositoryError: it is a FIFO or the like.
        ValueError: it is empty.
    """
    found = 0
    with open_regular(path) as file, map_file(file) as mapped:
        pieces = [
            (begin, min(LARGE_PAGE_BYTES, nbytes - begin))
            for begin in range(0, nbytes, LARGE_PAGE_BYTES)
        ]
        # Asked before anything is read: the kernel reads ahead.
        cached = [all(cached_pages(mapped, *piece)) for piece in pieces]
        for (begin, length), stays in zip(pieces, cached, strict=True):
            with memoryview(mapped) as whole, whole[begin : begin + length] as piece:
                found = zlib.crc32(piece, found)
            if not stays:
                mapped.madvise(mmap.MADV_DONTNEED, begin, length)
                os.posix_fadvise(file.fileno(), begin, length, os.POSIX_FADV_DONTNEED)
    return found


def tell_damaged(path: Path) -> None:
    """Say that an entry is not what was written."""
    _LOG.warning("%s is damaged: its checksum is another; the weights are laid out anew", path)


def _place(draft: Path, path: Path) -> None:
    if draft.is_dir():
        try:
            draft.rename(path)  # fails on a folder that is there already
        except OSError:
            if not path.is_dir():
                raise
        return
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        draft.rename(path)


def _sweep(folder: Path, prefix: str, after_s: float) -> None:
    with suppress(OSError):
        for entry in folder.glob(f"{prefix}*"):
            found = entry.lstat()
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > after_s:
                with _locked(entry, fcntl.LOCK_EX | fcntl.LOCK_NB) as free:
                    if free:  # nobody writes to it: its writer's lock ended with the process
                        shutil.rmtree(entry, ignore_errors=True)


@contextmanager
def _locked(folder: Path, kind: int = fcntl.LOCK_SH) -> Iterator[bool]:
    """Whether the lock could be had; true on a file system without locks."""
    held = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(held, kind)
    finally:
        os.close(held)


def _lock(held: int, kind: int) -> bool:
    try:
        fcntl.flock(held, kind)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
