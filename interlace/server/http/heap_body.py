"""Request bodies that are not received into the arena, and the budget they share.

Every body has ``received`` bytes and is ``done`` or not; ``take`` uses up ``data[start:end]`` and
gives the position after what belongs to it; ``drop`` is called once its bytes are not needed.
"""

from __future__ import annotations

from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.server.http.chunked_coding import ChunkDecoder
from interlace.server.http.responses import HttpError

#: What is still read of a refused request so that the connection can stay open.
SKIP_BYTES: Final = 64 * 1024


class HeapBudget:
    """Bytes of all bodies outside of the arena."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    def hold(self, nbytes: int) -> None:
        """Count bytes in.

        Raises:
            ServeError: OVERLOADED; nothing was counted.
        """
        if self.used_bytes + nbytes > self._limit_bytes:
            raise ServeError(
                Reason.OVERLOADED,
                f"request bodies of {self.used_bytes} bytes are being received already",
                retry_after_ms=1000.0,
            )
        self.used_bytes += nbytes


class HeapBody:
    """A body of known length."""

    def __init__(self, length: int, budget: HeapBudget) -> None:
        self._length = length
        self._budget = budget
        self._data = bytearray()

    @property
    def received(self) -> int:
        return len(self._data)

    @property
    def done(self) -> bool:
        return len(self._data) == self._length

    def take(self, data: bytearray, start: int, end: int) -> int:
        stop = min(end, start + self._length - len(self._data))
        self._budget.hold(stop - start)
        self._data += memoryview(data)[start:stop]
        return stop

    def content(self) -> bytearray:
        return self._data

    def drop(self) -> None:
        self._budget.used_bytes -= len(self._data)


class ChunkBody:
    """A chunked body."""

    def __init__(self, limit_bytes: int, budget: HeapBudget) -> None:
        self._chunks = ChunkDecoder(limit_bytes)
        self._budget = budget
        self._held = 0

    @property
    def received(self) -> int:
        return len(self._chunks.data)

    @property
    def done(self) -> bool:
        return self._chunks.done

    def take(self, data: bytearray, start: int, end: int) -> int:
        after = self._chunks.feed(data, start, end)
        self._budget.hold(self.received - self._held)
        self._held = self.received
        return after

    def content(self) -> bytearray:
        return self._chunks.data

    def drop(self) -> None:
        self._budget.used_bytes -= self._held


class SkippedBody:
    """A body that nobody wants, read so that the connection can go on after its refusal."""

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
        pass
