"""Buddy allocator over offsets, with a short stack of just-freed blocks per size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MIN_ORDER: Final = 6  #: blocks are at least 64 bytes, and so 64-byte aligned
QUICK_BLOCKS: Final = 64  #: freed blocks kept unmerged per size, reused last in, first out


class BuddyAllocator:
    """Power-of-two blocks of a range of bytes. Offsets only: it touches no memory.

    Freed blocks first wait on a bounded stack of their size: the next block of that size is the one
    whose bytes are still in the cache, and costs no split. They are merged with their buddies when
    the stack is full or an allocation finds nothing (the "lazy buddy" of Barkley and Lee, 1989,
    with a fixed slack), so freeing everything gives the whole range back.
    """

    def __init__(self, size_bytes: int) -> None:
        top = size_bytes.bit_length()
        self._free: list[dict[int, None]] = [{} for _ in range(top + 1)]
        self._quick: list[list[int]] = [[] for _ in range(top + 1)]
        self._orders: dict[int, int] = {}
        self._filled = 0  # bit k is set while self._free[k] holds a block
        self.used_bytes = 0
        offset = 0
        for order in range(top, MIN_ORDER - 1, -1):
            if size_bytes & (1 << order):
                self._put(offset, order)
                offset += 1 << order

    def alloc(self, nbytes: int) -> int | None:
        """Offset of a free block of at least ``nbytes``; ``None`` when there is none."""
        order = max(MIN_ORDER, (nbytes - 1).bit_length())
        if order >= len(self._quick):
            return None
        quick = self._quick[order]
        offset = quick.pop() if quick else self._take(order)
        if offset is None:
            self.merge()
            offset = self._take(order)
            if offset is None:
                return None
        self._orders[offset] = order
        self.used_bytes += 1 << order
        return offset

    def free(self, offset: int) -> None:
        """Give a block back.

        Raises:
            ValueError: no block was allocated at that offset.
        """
        order = self._orders.pop(offset, None)
        if order is None:
            raise ValueError(f"offset {offset} is not allocated: freed twice, or never given out")
        self.used_bytes -= 1 << order
        quick = self._quick[order]
        if len(quick) < QUICK_BLOCKS:
            quick.append(offset)
        else:
            self._give(offset, order)

    def merge(self) -> None:
        """Merge every waiting block with its free buddies."""
        for order, quick in enumerate(self._quick):
            while quick:
                self._give(quick.pop(), order)

    def free_blocks(self, at_least_bytes: int) -> Iterator[tuple[int, int]]:
        """(offset, size) of the merged free blocks of at least that size."""
        for order in range((at_least_bytes - 1).bit_length(), len(self._free)):
            for offset in self._free[order]:
                yield offset, 1 << order

    def _take(self, order: int) -> int | None:
        larger = self._filled >> order
        if not larger:
            return None
        found = order + (larger & -larger).bit_length() - 1
        blocks = self._free[found]
        offset, _ = blocks.popitem()
        if not blocks:
            self._filled &= ~(1 << found)
        while found > order:
            found -= 1
            self._put(offset + (1 << found), found)
        return offset

    def _put(self, offset: int, order: int) -> None:
        self._free[order][offset] = None
        self._filled |= 1 << order

    def _give(self, offset: int, order: int) -> None:
        while True:
            blocks = self._free[order]
            buddy = offset ^ (1 << order)
            if buddy not in blocks:
                break
            del blocks[buddy]
            if not blocks:
                self._filled &= ~(1 << order)
            offset = min(offset, buddy)
            order += 1
        self._put(offset, order)
