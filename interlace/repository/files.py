"""Files of a repository read with care: of the kind that they are to be, and of bearable size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from interlace.core.errors import RepositoryError
from interlace.core.model import Format
from interlace.formats.regular_file import open_regular

_POINTER: Final = b"version https://git-lfs"
_ZIP: Final = "a zip archive, as torch writes them"
#: How files begin that are taken for models, by what they are.
_CONTENTS: Final[Mapping[str, tuple[bytes, ...]]] = {
    "a web page": (b"<!doctype html", b"<html"),
    "an XML document": (b"<?xml",),
    "JSON text": (b"{", b"["),
    "a gzip file": (b"\x1f\x8b",),
    "an HDF5 file": (b"\x89hdf",),
    _ZIP: (b"pk\x03\x04",),
    "a pickle, as torch.save wrote them before 2020": (b"\x80\x02", b"\x80\x03", b"\x80\x04"),
}
_OWN: Final = {Format.TORCHSCRIPT: (_ZIP,), Format.EXPORTED: (_ZIP,)}


def check_content(file: Path, format: Format | None = None) -> None:
    """Refuse what is plainly something else than a file of that format: a pointer, a web page.

    Raises:
        RepositoryError: what it is.
        OSError: it cannot be read.
    """
    with open_regular(file) as opened:
        head = opened.read(512)
    _check_no_pointer(file, head)
    if format is None:
        return
    own = _OWN.get(format, ())
    text = head.lstrip().lower()
    found = ""
    for what, begins in _CONTENTS.items():
        if what not in own and any(text.startswith(one) for one in begins):
            found = what
    if head[8:10] == b'{"' and format is not Format.HUGGINGFACE:
        found = "a safetensors file"
    if found:
        raise RepositoryError(str(file), found, f"a model of {format.value}")


def _check_no_pointer(file: Path, head: bytes) -> None:
    if head.startswith(_POINTER):
        expected = "the file itself: run git lfs pull in the repository"
        raise RepositoryError(str(file), "a Git LFS pointer", expected)


def read_text(file: Path, limit_bytes: int) -> str:
    """The text of a regular file.

    Raises:
        RepositoryError: it is none, larger than that, or not UTF-8.
        OSError: it cannot be read.
    """
    with open_regular(file) as opened:
        data = opened.read(limit_bytes + 1)
    _check_no_pointer(file, data)
    if len(data) > limit_bytes:
        found = f"{os.stat(file).st_size} bytes"
        raise RepositoryError(str(file), found, f"at most {limit_bytes}")
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise RepositoryError(str(file), f"no text ({error})", "text in UTF-8") from error
