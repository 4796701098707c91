"""Writing the event log beside a running engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from interlace.core.hardware import Fleet
from interlace.core.messages import Command, Event
from interlace.runtime.eventlog.plain import digest, plain

#: What the file begins with; the number is that of the format.
MAGIC: Final = b"interlace log 1\n"
#: Bytes written at once, and of a log by default.
_BUFFER_BYTES: Final = 1 << 18
LIMIT_BYTES: Final = 1 << 30


class LogWriter:
    """An observer that appends every event, its time and a digest of its commands to a file.

    Entries are msgpack behind their length in four bytes. What is buffered is written when it is a
    quarter of a MiB, at every epoch, and on ``close``; a crash loses that much, and leaves a file
    that can be read. At ``limit_bytes`` it stops for good, with a last entry that says so: a replay
    needs every event from the first on, so older ones cannot make room.
    """

    def __init__(
        self, path: Path, fleet: Fleet, system: str, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        """Begin a log.

        Raises:
            OSError: the file cannot be written.
        """
        self._file = path.open("wb", buffering=_BUFFER_BYTES)
        self._encode = msgspec.msgpack.Encoder(enc_hook=_hook).encode
        self._left_bytes = limit_bytes
        self._file.write(MAGIC)
        self._append(["H", system, msgspec.to_builtins(fleet, str_keys=False)])

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if self._left_bytes <= 0:
            return
        values = plain(event)
        self._append([now_ms, digest(commands), values])
        if self._left_bytes <= 0:
            self._append(["full"])
            self._file.flush()
        elif values[0] == "T":
            self._file.flush()

    def close(self) -> None:
        """Write what is buffered."""
        self._left_bytes = 0
        self._file.close()

    def _append(self, entry: list[object]) -> None:
        data = self._encode(entry)
        self._left_bytes -= len(data) + 4
        self._file.write(len(data).to_bytes(4, "big") + data)


def _hook(value: object) -> object:
    if isinstance(value, frozenset):
        return list(value)
    raise TypeError(f"a {type(value).__name__} cannot be logged")
