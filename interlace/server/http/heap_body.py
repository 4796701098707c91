"""Request bodies that are not received into the arena.

Every kind of body, ``ArenaBody`` and ``ChunkedBody`` too, has ``received`` bytes and is ``done`` or
not; ``take`` uses up ``data[start:end]`` and returns the position after what belongs to the body;
``drop`` is called once its bytes are not needed any more.
"""

from __future__ import annotations

from typing import Final

from interlace.core.errors import ServeError
from interlace.server.heap_budget import HeapBudget, HeapReservation
from interlace.server.http.responses import HttpError

#: What is still read of a refused request so that the connection can stay open.
SKIP_BYTES: Final = 64 * 1024


class HeapBody:
    """A body of known length."""

    def __init__(self, length: int, budget: HeapBudget) -> None:
        self.data = bytearray()
        self._length = length
        self._reserved = HeapReservation(budget)

    @property
    def received(self) -> int:
        return len(self.data)

    @property
    def done(self) -> bool:
        return len(self.data) == self._length

    def take(self, data: bytearray, start: int, end: int) -> int:
        stop = min(end, start + self._length - len(self.data))
        self._reserved.resize(len(self.data) + stop - start)
        self.data += memoryview(data)[start:stop]
        return stop

    def drop(self) -> None:
        self._reserved.release()


class SkippedBody:
    """The body of a refused request, read and thrown away so that the connection can go on."""

    def __init__(self, length: int, error: HttpError | ServeError) -> None:
        self.error = error
        self.received = 0
        self._length = length

    @property
    def done(self) -> bool:
        return self.received == self._length

    def take(self, data: bytearray, start: int, end: int) -> int:
        stop = min(end, start + self._length - self.received)
        self.received += stop - start
        return stop

    def drop(self) -> None:
        """Nothing is held."""
