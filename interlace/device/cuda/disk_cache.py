"""Files made once on a machine and kept: compiled kernels and loops, by what they are made of."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Where they lie, in the home folder.
FOLDER: Final = "~/.cache/interlace/kernels"


def cached_bytes(
    folder: Path, stem: str, made_of: str, suffix: str, make: Callable[[], bytes]
) -> bytes:
    """The contents of the file, read if it is there, else made and written for the next process.

    A folder that cannot be read or written costs the next process the time to make it again.

    Raises:
        Exception: whatever ``make`` raises.
    """
    name = f"{stem}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}{suffix}"
    try:
        return (folder / name).read_bytes()
    except OSError:
        made = make()
    with suppress(OSError):  # a home that is read-only or full is no obstacle
        _keep(folder / name, made)
    return made


def _keep(path: Path, contents: bytes) -> None:
    # Another process may be writing the same file: a whole one takes its place in one step.
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(contents)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
