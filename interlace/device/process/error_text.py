"""Errors of a worker as the text that clients and operators read."""

from __future__ import annotations

from typing import Final

from interlace.core.errors import RepositoryError

_DETAIL_CHARS: Final = 2000


class ReadableError(Exception):
    """An error whose text needs no class name before it."""


def error_text(what: str, error: BaseException) -> str:
    """What failed and why. A repository's error stands alone: it names its file."""
    if isinstance(error, RepositoryError):
        return str(error)[:_DETAIL_CHARS]
    readable = isinstance(error, ReadableError | MemoryError)
    name = "" if readable else f"{type(error).__name__}: "
    return f"{what}: {name}{error}"[:_DETAIL_CHARS]
