"""An observer that writes every event to files of bounded size."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

from interlace.core.messages import Command, Event, RequestArrived, Woke, WorkFinished
from interlace.engine.engine import Engine
from interlace.runtime.log.checkpoint import save
from interlace.runtime.log.codec import OpenWork, encode, track
from interlace.runtime.log.header import LENGTH, MAGIC, LogHeader, frame

_log = logging.getLogger(__name__)

#: Events of which there are many; after any other what is buffered is written.
_MANY: Final = (RequestArrived, WorkFinished, Woke)
_BUFFER_BYTES: Final = 1 << 16


class LogWriter:
    """Writes ``path``, and keeps the file before it as ``path`` with ``.1`` behind.

    Together they hold at most ``limit_bytes``. Each can be replayed by itself: a file that follows
    another begins with the engine as it then was. Without an ``engine`` there is one file, of any
    size. What is buffered is written at least once an
    epoch. A disk that is full ends this log, not the server.
    """

    def __init__(
        self,
        path: Path,
        header: LogHeader,
        engine: Engine | None = None,
        limit_bytes: int = 1 << 30,
    ) -> None:
        """Begin the file; one of that name is begun anew.

        Raises:
            OSError: it cannot be written.
        """
        self._path = path
        self._header = header
        self._engine = engine
        self._most_bytes = limit_bytes // 2
        self._begun: OpenWork = {}
        self._buffer = bytearray()
        self._size = 0
        self._file: IO[bytes] | None = self._begin(header)

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if self._file is None:
            return
        entry = encode(now_ms, event, commands)
        track(self._begun, event, commands)
        self._buffer += len(entry).to_bytes(LENGTH, "little")
        self._buffer += entry
        if len(self._buffer) > _BUFFER_BYTES or not isinstance(event, _MANY):
            self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        if self._file is None:
            return
        try:
            self._file.write(self._buffer)
            self._size += len(self._buffer)
            self._buffer.clear()
            if self._size > self._most_bytes and self._engine is not None:
                self._rotate(self._engine)
        except OSError as error:
            self._file.close()
            self._file = None
            _log.error("%s: %s: events are not kept any more", self._path, error.strerror)

    def close(self) -> None:
        """Write what is buffered and close the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, header: LogHeader) -> IO[bytes]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("wb", buffering=0)
        start = MAGIC + frame(msgspec.msgpack.encode(header))
        file.write(start)
        self._size = len(start)
        return file

    def _rotate(self, engine: Engine) -> None:
        if self._file is not None:
            self._file.close()
        os.replace(self._path, previous_file(self._path))
        kept = save(engine, self._begun)
        self._file = self._begin(msgspec.structs.replace(self._header, checkpoint=kept))


def previous_file(path: Path) -> Path:
    """The name of the file before ``path``."""
    return path.with_name(path.name + ".1")
