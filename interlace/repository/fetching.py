"""Model folders that are made of files which somebody else has, each known by its digest."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

from interlace.core.errors import RepositoryError
from interlace.core.node import ModelFiles
from interlace.repository.digest import Digests
from interlace.repository.folder import check_name, folder_names

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
    parts = PurePosixPath(path).parts
    if not parts or PurePosixPath(path).is_absolute() or ".." in parts:
        raise RepositoryError(path, "a path that leads out of the model's folder", "a path in it")
    return folder.joinpath(*parts)
