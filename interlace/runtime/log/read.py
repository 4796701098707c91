"""Reads a log: the header, then entry by entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from interlace.runtime.log.header import LENGTH, MAGIC, LogHeader

_DECODER = msgspec.msgpack.Decoder(LogHeader)


class LogError(ValueError):
    """The file is no log or is broken: what is wrong, and where."""


@dataclass(slots=True)
class LogFile:
    """A log that can be read any number of times; a run that still writes to it may go on.

    ``cut_bytes`` are those of a last entry that is not whole: the run was killed while it wrote
    them, or is writing them. They are passed over. Known once the entries have been read.
    """

    path: Path
    header: LogHeader
    begins: int
    cut_bytes: int = 0

    def entries(self) -> Iterator[bytes]:
        """Every whole entry, in order."""
        with self.path.open("rb") as file:
            file.seek(self.begins)
            while True:
                body, missing = _frame(file)
                if body is None:
                    self.cut_bytes = missing
                    return
                yield body


def open_log(path: Path) -> LogFile:
    """The log in ``path``.

    Raises:
        LogError: it is none.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise LogError(f"{path}: not an event log (interlace serve --log writes them)")
        body, _ = _frame(file)
        begins = file.tell()
    if body is None:
        raise LogError(f"{path}: it ends within its header")
    try:
        return LogFile(path, _DECODER.decode(body), begins)
    except msgspec.MsgspecError as error:
        raise LogError(f"{path}: its header is of another version: {error}") from None


def _frame(file: IO[bytes]) -> tuple[bytes | None, int]:
    """The next frame; if it is not whole, ``None`` and how many bytes of it are there."""
    head = file.read(LENGTH)
    if len(head) < LENGTH:
        return None, len(head)
    length = int.from_bytes(head, "little")
    body = file.read(length)
    return (body, 0) if len(body) == length else (None, LENGTH + len(body))
