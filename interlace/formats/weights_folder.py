"""Entries of the weights folder: written aside, put in place at once, never changed after."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = ".writing-"
_ABANDONED_S: Final = 900.0


def publish(path: Path, write: Callable[[Path], None]) -> None:
    """Have ``write`` make the file or folder ``path`` under another name, then put it in place.

    If somebody else was faster, theirs stays. What a killed process left half-written is removed
    once it is a quarter of an hour old.

    Raises:
        OSError: no space or no permission; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=path.parent) as aside:
        draft = Path(aside) / path.name
        write(draft)
        _place(draft, path)


def discard_broken(path: Path, is_whole: Callable[[Path], bool]) -> None:
    """Remove a folder that is not whole, so that it can be published again.

    One that somebody else has published meanwhile stays: only one looks and removes at a time.
    """
    if not path.exists():
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        if not is_whole(path):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)


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


def _sweep(folder: Path) -> None:
    with suppress(OSError):
        for entry in folder.glob(f"{_PREFIX}*"):
            if time.time() - entry.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(entry, ignore_errors=True)
