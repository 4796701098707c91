"""Reads a log: the header, then entry by entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

from interlace.core.errors import RepositoryError
from interlace.core.hardware import Fleet, Gpu
from interlace.core.profile import Profile
from interlace.formats.page_cache import open_regular

#: How the file of any version begins, and of the version that is written and read.
ANY_MAGIC: Final = b"interlace event log "
MAGIC: Final = ANY_MAGIC + b"2\n"
LENGTH: Final = 4  #: bytes of a frame's length


class LogHeader(msgspec.Struct, frozen=True):
    """Written first in every file.

    ``system`` names the catalog's row, ``row+other`` where the dispatcher is another row's.
    ``fleet`` and ``reserve`` are what the engine was made with. ``from_ms`` to ``until_ms`` is
    when arrivals are measured, on the run's clock; ``until_ms`` is ``None`` while that is unknown.
    ``checkpoint`` is the engine as it was when the file was begun; empty for a fresh one. So many
    events before it (``lost_events``, the first at ``lost_from_ms``) could not be written.
    ``profiles`` are those of the models deployed then: readers of the traffic restore no engine.
    """

    version: str
    system: str
    fleet: Fleet
    reserve: tuple[Gpu, ...] = ()
    source: str = "serve"  #: the command that wrote it
    started: str = ""  #: wall-clock time of the run's time 0, ISO 8601; empty in virtual time
    from_ms: float = 0.0
    until_ms: float | None = None
    checkpoint: bytes = b""
    lost_events: int = 0
    lost_from_ms: float = 0.0
    profiles: dict[str, Profile] = {}


def frame(body: bytes) -> bytes:
    """A body with its length before it."""
    return len(body).to_bytes(LENGTH, "little") + body


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
    try:
        file = open_regular(path)
    except RepositoryError as error:
        raise LogError(str(error)) from None
    with file:
        magic = file.read(len(MAGIC))
        if not magic.startswith(ANY_MAGIC):
            raise LogError(f"{path}: not an event log (interlace serve --log writes them)")
        if magic != MAGIC:
            found = magic.removeprefix(ANY_MAGIC).decode("ascii", "replace").strip()
            raise LogError(
                f"{path}: an event log of format {found}; expected format 2: read it with the "
                "version of Interlace that wrote it"
            )
        body, _ = _frame(file)
        begins = file.tell()
    if body is None:
        raise LogError(f"{path}: it ends within its header")
    try:
        return LogFile(path, _DECODER.decode(body), begins)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LogError(f"{path}: its header is of another version: {error}") from None


def _frame(file: IO[bytes]) -> tuple[bytes | None, int]:
    """The next frame; if it is not whole, ``None`` and how many bytes of it are there."""
    head = file.read(LENGTH)
    if len(head) < LENGTH:
        return None, len(head)
    length = int.from_bytes(head, "little")
    body = file.read(length)
    return (body, 0) if len(body) == length else (None, LENGTH + len(body))
