"""One number for the contents of a version folder: what profiles and shared weights are kept by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from interlace.core.errors import RepositoryError

_BLOCK_BYTES: Final = 1 << 20
_FILES_LIMIT: Final = 10_000
_IGNORED_SUFFIXES: Final = (".md", ".pyc", ".lock")
_IGNORED_NAMES: Final = ("__pycache__",)


class Digests:
    """SHA-256 over folders; a file is read again only if its size, time or inode changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int], bytes]] = {}

    def of(self, folder: Path) -> str:
        """64 hex digits over the names and contents of every file that can matter.

        Hidden files, documentation and caches are left out; links are followed.

        Raises:
            RepositoryError: a file cannot be read, or there are too many.
        """
        total = hashlib.sha256()
        try:
            for path in _files(folder):
                name = path.relative_to(folder).as_posix().encode()
                total.update(len(name).to_bytes(4, "little") + name + self._file(path))
        except OSError as error:
            raise RepositoryError(
                str(error.filename or folder), error.strerror or str(error), "a readable file"
            ) from error
        return total.hexdigest()

    def _file(self, path: Path) -> bytes:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        known = self._known.get(str(path))
        if known is not None and known[0] == stamp:
            return known[1]
        content = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                content.update(block)
        self._known[str(path)] = (stamp, content.digest())
        return content.digest()


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not _ignored(name))
        for name in sorted(names):
            if _ignored(name):
                continue
            count += 1
            if count > _FILES_LIMIT:
                raise RepositoryError(
                    str(folder), f"more than {_FILES_LIMIT} files", "the files of one model"
                )
            yield Path(parent, name)


def _ignored(name: str) -> bool:
    return name.startswith(".") or name in _IGNORED_NAMES or name.endswith(_IGNORED_SUFFIXES)
