"""Digests of model folders, and folders made of files that are known by their digest."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from interlace.core.errors import RepositoryError
from interlace.core.node import ModelFiles
from interlace.formats.page_cache import open_regular
from interlace.repository.folder import check_name, folder_names, leads_out

_BLOCK_BYTES: Final = 1 << 17  #: threads that read keep two each
_FILES_LIMIT: Final = 10_000
#: Most bytes of all files of a model, holes included.
_MODEL_BYTES: Final = 1 << 40
#: A larger file with at most 1/``_SPARSE_TIMES`` of it on disk is refused: holes are slow to read.
_SPARSE_FROM_BYTES: Final = 4 << 30
_SPARSE_TIMES: Final = 64
Stamp = tuple[int, int, int]
_IGNORED_SUFFIXES: Final = (".md", ".pyc", ".lock")
_IGNORED_NAMES: Final = ("__pycache__",)


class Digests:
    """SHA-256 over folders; a file is read again only if its size, time or inode changed.

    ``steps`` counts what was read so far, and may be read from other threads to see progress.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._known: dict[str, dict[str, tuple[Stamp, bytes]]] = {}

    def of(self, folder: Path) -> str:
        """64 hex digits over the names and contents of every file that can matter.

        Hidden files, documentation and caches are left out; links are followed.

        Raises:
            RepositoryError: a file cannot be read, or there are too many.
        """
        total = hashlib.sha256()
        for name, (_, content) in self._look(folder).items():
            encoded = name.encode(errors="surrogateescape")
            total.update(len(encoded).to_bytes(4, "little") + encoded + content)
        return total.hexdigest()

    def files(self, folder: Path) -> dict[str, tuple[int, str]]:
        """Bytes and SHA-256 (64 hex digits) of each of these files, by its path in the folder.

        Raises:
            RepositoryError: as ``of``, or a name is not UTF-8: names are sent to others.
        """
        found: dict[str, tuple[int, str]] = {}
        for name, (stamp, content) in self._look(folder).items():
            if not name.isprintable():
                raise RepositoryError(
                    f"{folder}: {name!r}", "a name that is no printable text", "a name in UTF-8"
                )
            found[name] = stamp[1], content.hex()
        return found

    def _look(self, folder: Path) -> dict[str, tuple[Stamp, bytes]]:
        before, now = self._known.get(str(folder), {}), {}
        left_bytes = _MODEL_BYTES
        try:
            for path in _files(folder):
                name = path.relative_to(folder).as_posix()
                now[name] = self._file(path, before.get(name), left_bytes)
                left_bytes -= now[name][0][1]
        except OSError as error:
            raise RepositoryError(
                str(error.filename or folder), error.strerror or str(error), "a readable file"
            ) from error
        self._known[str(folder)] = now
        return now

    def forget(self, folder: Path) -> None:
        """Keep nothing of a folder and what is in it."""
        for name in [name for name in list(self._known) if Path(name).is_relative_to(folder)]:
            del self._known[name]

    def _file(
        self, path: Path, known: tuple[Stamp, bytes] | None, left_bytes: int
    ) -> tuple[Stamp, bytes]:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if status.st_size > left_bytes:
                raise RepositoryError(
                    str(path),
                    f"{status.st_size} bytes",
                    f"a model of at most {_MODEL_BYTES} bytes in all",
                )
            if _is_hollow(file.fileno(), status):
                raise RepositoryError(
                    str(path),
                    f"{status.st_size} bytes, of which the disk holds {status.st_blocks * 512}",
                    "a file that is all there, and not holes",
                )
            self.steps += 1
            if known is not None and known[0] == stamp:
                return known
            content = hashlib.sha256()
            while block := file.read(_BLOCK_BYTES):
                if file.tell() > status.st_size:  # such as those of /proc, which may have no end
                    raise RepositoryError(
                        str(path),
                        f"more than its {status.st_size} bytes",
                        "a file that stays as it is while it is read",
                    )
                content.update(block)
                self.steps += 1
        return stamp, content.digest()


def _is_hollow(fd: int, status: os.stat_result) -> bool:
    """Whether nearly all of a large file is holes.

    File systems that know no holes, or tell no blocks, say that there are none.
    """
    held_bytes = status.st_blocks * 512
    if status.st_size < _SPARSE_FROM_BYTES or held_bytes > status.st_size // _SPARSE_TIMES:
        return False
    hole = os.lseek(fd, 0, os.SEEK_HOLE)
    os.lseek(fd, 0, os.SEEK_SET)
    return hole < status.st_size


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


#: A file is asked for in blocks of so many bytes.
BLOCK_BYTES: Final = 4 << 20
_PREFIX: Final = ".fetched-"

_DIGEST: Final = re.compile("[0-9a-f]{64}")

#: Gives one block of the file with a digest, by the block's number; raises OSError.
ReadBlock = Callable[[str, int], bytes]


def models_in(
    root: Path,
    digests: Digests,
    failures: dict[str, RepositoryError] | None = None,
    found: dict[str, ModelFiles] | None = None,
) -> dict[str, ModelFiles]:
    """Every model folder of a repository, by name; why one cannot be read goes into ``failures``.

    Each is in ``found`` as soon as it is read.

    Raises:
        RepositoryError: the repository cannot be read; without ``failures``, one of its models.
    """
    found = {} if found is None else found
    for name in folder_names(root):
        try:
            found[name] = ModelFiles(digests.of(root / name), digests.files(root / name))
        except RepositoryError as error:
            if failures is None:
                raise
            failures[name] = error
    return found


def fetch(root: Path, name: str, wanted: ModelFiles, read: ReadBlock, digests: Digests) -> None:
    """Make ``root/name`` hold these files and no others; until all are there it is as it was.

    Files that it has already are not read again.

    Raises:
        RepositoryError: a file is other than its digest says, or has no place here.
        OSError: it cannot be read, or not be written.
    """
    check_name(name)
    _check(name, wanted)
    folder = root / name
    there = {
        known: folder / path
        for path, (_, known) in (digests.files(folder) if folder.is_dir() else {}).items()
    }
    needed = sum(size for size, digest in wanted.files.values() if digest not in there)
    if needed > shutil.disk_usage(root).free:
        raise OSError(errno.ENOSPC, f"{needed} bytes do not fit", str(root))
    fresh = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    try:
        for path, (size, digest) in wanted.files.items():
            target = _inside(fresh, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if digest in there:
                os.link(there[digest], target)
            else:
                _fetch_file(target, size, digest, read)
        _replace(folder, fresh)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def forget_all_but(root: Path, names: set[str]) -> None:
    """Remove the folders of other models, and what fetches that were broken off have left.

    Raises:
        OSError: one cannot be removed.
    """
    for entry in root.iterdir():
        if entry.name not in names and entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)


def _fetch_file(target: Path, size: int, digest: str, read: ReadBlock) -> None:
    content = hashlib.sha256()
    left = size
    with target.open("wb") as file:
        for number in range(-(-size // BLOCK_BYTES)):
            block = read(digest, number)
            if len(block) != min(left, BLOCK_BYTES):
                raise RepositoryError(
                    target.name,
                    f"a block of {len(block)} bytes",
                    f"{min(left, BLOCK_BYTES)} bytes of digest {digest[:12]}",
                )
            left -= len(block)
            content.update(block)
            file.write(block)
    if left or content.hexdigest() != digest:
        raise RepositoryError(
            target.name,
            f"{size - left} bytes of digest {content.hexdigest()[:12]}",
            f"{size} bytes of digest {digest[:12]}: the file changed while it was fetched",
        )


def _check(name: str, wanted: ModelFiles) -> None:
    for path, (size, digest) in wanted.files.items():
        if size < 0 or _DIGEST.fullmatch(digest) is None or not path.isprintable():
            raise RepositoryError(
                f"{name}: {path!r}", f"{size} bytes of digest {digest[:80]!r}",
                "a printable path, a size, and a SHA-256 in 64 hexadecimal digits",
            )  # fmt: skip


def _replace(folder: Path, fresh: Path) -> None:
    """Put a folder in the place of another; a crash in between leaves none, never a mixture."""
    fresh.chmod(0o755)
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder.parent))
        folder.rename(old / folder.name)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        fresh.rename(folder)


def _inside(folder: Path, path: str) -> Path:
    if not PurePosixPath(path).parts or leads_out(path):
        raise RepositoryError(path, "a path that leads out of the model's folder", "a path in it")
    return folder / path
