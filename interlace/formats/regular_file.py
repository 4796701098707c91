"""Opening files whose names others choose: regular ones alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from interlace.core.errors import RepositoryError

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
