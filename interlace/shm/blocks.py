"""Who owns the blocks of an arena: each block has one owner, which frees it exactly once."""

from __future__ import annotations

from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.shm.arena import Arena

#: First block of a body that is only announced, in an arena that is half full.
_FIRST_BYTES: Final = 4096


class ArenaBlocks:
    """Blocks of one arena that belong to one owner.

    A block is in one ``ArenaBlocks`` from its allocation to its end. ``take_over`` moves all blocks
    of another owner here, which then has none; after ``free`` there are none left to free. So no
    block is freed twice, and one whose owner is freed in every ending is never lost.
    """

    __slots__ = ("_arena", "_offsets")

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._offsets: list[int] = []

    def __len__(self) -> int:
        return len(self._offsets)

    def alloc(self, nbytes: int) -> int:
        """The offset in the arena of a new block of ``nbytes``.

        Raises:
            ServeError: TOO_LARGE for a block that would fill half of the arena, OVERLOADED while
                there is no room.
        """
        offset = self._arena.alloc(nbytes)
        if offset is None:
            raise no_room(self._arena, nbytes)
        self._offsets.append(offset)
        return offset

    def alloc_coming(self, nbytes: int, here: int = 0) -> tuple[int, int]:
        """The offset of a block for bytes that are to come, and its size, of at least ``here``.

        It holds all of them as long as half of the arena stays free. Otherwise it is small, and the
        caller must ``grow`` it. So announced bytes never take more than half of an arena.

        Raises:
            ServeError: as ``alloc``.
        """
        arena = self._arena
        if nbytes > arena.size_bytes // 2:
            raise no_room(arena, nbytes)
        room = nbytes
        if arena.used_bytes + nbytes > arena.size_bytes // 2:
            room = min(nbytes, max(_FIRST_BYTES, 2 * here))
        return self.alloc(room), room

    def grow(self, offset: int, filled: int, nbytes: int) -> tuple[int, int]:
        """Move a full block of ``filled`` bytes, of ``nbytes`` in the end, to a larger one.

        Raises:
            ServeError: as ``alloc``; the block stays where it was.
        """
        room = min(nbytes, 2 * filled)
        moved, memory = self.alloc(room), self._arena.memory
        memory[moved : moved + filled] = memory[offset : offset + filled]
        self._offsets.remove(offset)
        self._arena.free(offset)
        return moved, room

    def take_over(self, other: ArenaBlocks) -> None:
        """Own every block of ``other``, an owner in the same arena, from now on."""
        offsets, other._offsets = other._offsets, []
        self._offsets += offsets

    def free(self) -> None:
        """Give all blocks back to the arena."""
        offsets, self._offsets = self._offsets, []
        for offset in offsets:
            self._arena.free(offset)


def no_room(arena: Arena, nbytes: int) -> ServeError:
    """Return the refusal of a request for which an arena has no block of ``nbytes``."""
    size_bytes = arena.size_bytes
    if nbytes > size_bytes // 2:
        return ServeError(
            Reason.TOO_LARGE,
            f"{nbytes} bytes of tensors in one request; the server has {size_bytes} bytes for all, "
            f"of which one may take half",
        )
    return ServeError(
        Reason.OVERLOADED,
        f"no room for {nbytes} bytes of tensors: {arena.used_bytes} of {size_bytes} bytes are in "
        f"use by other requests",
        retry_after_ms=100.0,
    )
