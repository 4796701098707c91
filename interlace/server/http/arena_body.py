"""A request body in the arena, placed so that its tensors need not move again."""

from __future__ import annotations

from typing import Final

from interlace.shm.arena import Arena
from interlace.shm.blocks import ArenaBlocks

ALIGNMENT: Final = 64
#: A raw body is one tensor; a BYTES element needs room for its length in front.
RAW_PAD: Final = 64


class ArenaBody:
    """A block of the arena that receives one body: JSON first, tensors from an aligned address.

    The body owns the block until ``hand_over``. ``rest`` is what is still to be received; ``base``
    is the offset in the arena of the first byte after the JSON part.
    """

    __slots__ = ("_blocks", "arena", "base", "json_length", "length", "offset", "rest", "view")

    def __init__(self, arena: Arena, length: int, json_length: int) -> None:
        """Allocate the block.

        Raises:
            ServeError: the arena is full.
        """
        pad = -json_length % ALIGNMENT if json_length else RAW_PAD
        self._blocks: ArenaBlocks | None = ArenaBlocks(arena)
        #: of the body's first byte in the arena
        self.offset = self._blocks.alloc(pad + length) + pad
        self.arena = arena.number
        self.length = length
        self.json_length = json_length
        self.base = self.offset + json_length
        self.rest = self.view = arena.view(self.offset, length)

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
        """Say how long the body is after all, no longer than the block was allocated for."""
        self.length = length
        self.rest = self.view = self.view[:length]

    def hand_over(self) -> ArenaBlocks:
        """The block, for its next owner; the bytes stay readable here as long as that keeps it."""
        blocks, self._blocks = self._blocks, None
        assert blocks is not None, "a body has one owner after another"
        return blocks

    def drop(self) -> None:
        """Free the block, if it is still the body's."""
        if self._blocks is not None:
            self._blocks.free()


def aligned(nbytes: int) -> int:
    """The bytes that a tensor takes where another aligned one follows it."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
