"""Errors of a worker as the text that clients and operators read."""

from __future__ import annotations

import re
from typing import Final

from interlace.core.errors import RepositoryError

_DETAIL_CHARS: Final = 2000
#: What torch, ONNX Runtime and NumPy say of an index into a table that is not so long.
_NO_SUCH_ROW: Final = re.compile(
    r"index out of range in self|ind(?:ex|ices)\b[^\n]{0,40} out of (?:data )?bounds[^\n]*"
)


class ReadableError(Exception):
    """An error whose text needs no class name before it."""


def error_text(what: str, error: BaseException) -> str:
    """What failed and why. A repository's error stands alone: it names its file."""
    if isinstance(error, RepositoryError):
        return str(error)[:_DETAIL_CHARS]
    readable = isinstance(error, ReadableError | MemoryError)
    name = "" if readable else f"{type(error).__name__}: "
    return f"{what}: {name}{error}"[:_DETAIL_CHARS]


def values_error(error: BaseException) -> str:
    """What is wrong with a request's values if a model says so: a token beyond its vocabulary."""
    found = _NO_SUCH_ROW.search(str(error))
    return found[0][:_DETAIL_CHARS] if found else ""
