"""Files of a repository opened with care: regular ones only, and no more than is bearable."""

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


def read_text(file: Path, limit_bytes: int) -> str:
    """The text of a regular file.

    Raises:
        RepositoryError: it is none, larger than that, or not UTF-8.
        OSError: it cannot be read.
    """
    with open_regular(file) as opened:
        data = opened.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        found = f"{os.stat(file).st_size} bytes"
        raise RepositoryError(str(file), found, f"at most {limit_bytes}")
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise RepositoryError(str(file), f"no text ({error})", "text in UTF-8") from error
