"""Chunked request bodies, decoded strictly (RFC 9112, section 7.1)."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.server.heap_budget import HeapBudget, HeapReservation
from interlace.server.http.responses import HttpError

LINE_BYTES: Final = 4096  #: of a chunk's size with its extensions, or of a trailer field
TRAILER_LINES: Final = 64
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")


class _State(Enum):
    SIZE = "size"
    DATA = "data"
    AFTER = "after"
    TRAILER = "trailer"
    DONE = "done"


class ChunkedBody:
    """A body that comes in chunks, ``limit_bytes`` at most."""

    __slots__ = (
        "_left", "_limit_bytes", "_line", "_reserved", "_state", "_trailers", "data",
    )  # fmt: skip

    def __init__(self, limit_bytes: int, budget: HeapBudget) -> None:
        self.data = bytearray()
        self._limit_bytes = limit_bytes
        self._reserved = HeapReservation(budget)
        self._state = _State.SIZE
        self._left = 0
        self._line = bytearray()
        self._trailers = 0

    @property
    def received(self) -> int:
        return len(self.data)

    @property
    def done(self) -> bool:
        return self._state is _State.DONE

    def take(self, data: bytearray, start: int, end: int) -> int:
        """Take bytes ``start`` to ``end``; the position after what belongs to this body.

        Raises:
            HttpError: the framing is broken.
            ServeError: the body exceeds its limit, or all bodies theirs.
        """
        while start < end and self._state is not _State.DONE:
            if self._state is _State.DATA:
                stop = min(end, start + self._left)
                self._reserved.resize(len(self.data) + stop - start)
                self.data += memoryview(data)[start:stop]
                self._left -= stop - start
                start = stop
                if not self._left:
                    self._state = _State.AFTER
            else:
                start = self._take_line(data, start, end)
        return start

    def drop(self) -> None:
        self._reserved.release()

    def _take_line(self, data: bytearray, start: int, end: int) -> int:
        found = data.find(b"\n", start, end)
        stop = end if found < 0 else found + 1
        self._line += memoryview(data)[start:stop]
        if len(self._line) > LINE_BYTES:
            raise HttpError(400, f"a chunk's line exceeds {LINE_BYTES} bytes")
        if found >= 0:
            line, self._line = bytes(self._line), bytearray()
            if not line.endswith(b"\r\n"):
                raise HttpError(400, "a line of the chunked body does not end in CR LF")
            self._enter(line[:-2])
        return stop

    def _enter(self, line: bytes) -> None:
        if self._state is _State.SIZE:
            self._begin_chunk(line)
        elif self._state is _State.AFTER:
            if line:
                raise HttpError(400, f"chunk is longer than its size: {line[:32]!r} follows it")
            self._state = _State.SIZE
        elif not line:
            self._state = _State.DONE
        else:
            self._trailers += 1
            if self._trailers > TRAILER_LINES:
                raise HttpError(400, f"more than {TRAILER_LINES} trailer fields")

    def _begin_chunk(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise HttpError(400, f"malformed chunk size {line[:32]!r}")
        self._left = int(match[1], 16)
        if len(self.data) + self._left > self._limit_bytes:
            raise ServeError(
                Reason.TOO_LARGE, f"the chunked body exceeds the limit of {self._limit_bytes} bytes"
            )
        self._state = _State.DATA if self._left else _State.TRAILER
