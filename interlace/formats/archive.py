"""Zip archives of torch, looked at before torch unpacks them into memory."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

from interlace.core.errors import RepositoryError

#: torch stores entries as they are; who compresses an archive gains less than this.
_MOST_TIMES: Final = 8
#: Small archives may unpack to so much all the same.
_ALWAYS_BYTES: Final = 64 << 20


def check_unpacked(path: Path) -> None:
    """Refuse what is no archive, and one that unpacks to far more than it takes on disk.

    Raises:
        RepositoryError: what was found, and how much is allowed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked_bytes = sum(entry.file_size for entry in archive.infolist())
        most_bytes = max(_ALWAYS_BYTES, _MOST_TIMES * path.stat().st_size)
    except (zipfile.BadZipFile, OSError) as error:
        empty = path.is_file() and not path.stat().st_size
        found = "an empty file" if empty else str(error)
        raise RepositoryError(str(path), found, "an archive that torch wrote") from error
    if unpacked_bytes > most_bytes:
        raise RepositoryError(
            str(path),
            f"an archive that unpacks to {unpacked_bytes / 1e6:.0f} MB",
            f"{most_bytes / 1e6:.0f} MB at most: {_MOST_TIMES} times its size; save it again",
        )
