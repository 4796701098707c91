"""Where an inference body lies in the arena, so that its tensors need not move again."""

from __future__ import annotations

from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.shm.arena import Arena

ALIGNMENT: Final = 64
#: A raw body is one tensor; a BYTES element needs room for its length in front.
RAW_PAD: Final = 64


class ArenaBody:
    """A slot of the arena that receives one body: JSON first, tensors from an aligned address.

    ``rest`` is what is still to be received; ``base`` is the offset in the arena of the first byte
    after the JSON part.
    """

    __slots__ = ("_arena", "base", "json_length", "length", "offset", "pad", "rest", "view")

    def __init__(self, arena: Arena, length: int, json_length: int) -> None:
        """Take a slot.

        Raises:
            ServeError: the arena is full.
        """
        pad = self.pad = -json_length % ALIGNMENT if json_length else RAW_PAD
        self._arena = arena
        self.offset = take(arena, pad + length)
        self.length = length
        self.json_length = json_length
        self.base = self.offset + pad + json_length
        self.rest = self.view = arena.view(self.offset + pad, length)

    @property
    def arena(self) -> int:
        """The arena's number."""
        return self._arena.number

    @property
    def received(self) -> int:
        return self.length - len(self.rest)

    @property
    def done(self) -> bool:
        return not self.rest

    def take(self, data: bytearray, start: int, end: int) -> int:
        """Copy in what was received elsewhere; the position after what belongs to this body."""
        rest = self.rest
        count = min(end - start, len(rest))
        rest[:count] = memoryview(data)[start : start + count]
        self.rest = rest[count:]
        return start + count

    def json(self) -> bytes:
        return self.view[: self.json_length].tobytes()

    def cut(self, length: int) -> None:
        """Say how long the body is after all, no longer than the slot was taken for."""
        self.length = length
        self.rest = self.view = self.view[:length]

    def drop(self) -> None:
        """Give the slot back."""
        self._arena.free(self.offset)


def land(arena: Arena, body: bytes, json_length: int) -> ArenaBody:
    """A body that was received elsewhere, copied into a slot.

    Raises:
        ServeError: the arena is full.
    """
    landing = ArenaBody(arena, len(body), json_length)
    landing.view[:] = body
    return landing


def take(arena: Arena, nbytes: int) -> int:
    """A slot's offset.

    Raises:
        ServeError: the arena is full.
    """
    offset = arena.alloc(nbytes)
    if offset is None:
        raise ServeError(
            Reason.OVERLOADED,
            f"no room for {nbytes} bytes of tensors: {arena.used_bytes} of {arena.size_bytes} "
            f"bytes are in use by other requests",
            retry_after_ms=100.0,
        )
    return offset
