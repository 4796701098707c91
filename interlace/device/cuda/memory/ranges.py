"""Ranges cut from a span of addresses, all of whole pieces, and given back by where they begin."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from interlace.shm.extents import Extents

ALIGN_BYTES: Final = 512  #: as the driver's own allocations


class RangeAllocator:
    """Which bytes of ``size_bytes`` are taken. Offsets only: it touches no memory."""

    def __init__(self, size_bytes: int) -> None:
        """``size_bytes`` is rounded down to whole pieces of the alignment."""
        self.size_bytes = size_bytes // ALIGN_BYTES * ALIGN_BYTES
        self._free = Extents(self.size_bytes)
        self._taken: dict[int, int] = {}

    @property
    def free_bytes(self) -> int:
        return self._free.free_bytes

    @property
    def empty(self) -> bool:
        """Whether nothing of it is taken."""
        return not self._taken

    @staticmethod
    def rounded(nbytes: int) -> int:
        """What a range of ``nbytes`` takes."""
        return max(1, -(-nbytes // ALIGN_BYTES)) * ALIGN_BYTES

    def take(self, nbytes: int) -> int | None:
        """The offset of a range of at least ``nbytes``; ``None`` if there is none."""
        size = self.rounded(nbytes)
        begin = self._free.take(size)
        if begin is not None:
            self._taken[begin] = size
        return begin

    def split(self, begin: int, sizes: Sequence[int]) -> list[int]:
        """Make a range that was taken several, one behind the other, each given back by itself.

        ``sizes`` are rounded, and together what was taken.
        """
        assert sum(sizes) == self._taken.pop(begin), "the parts are not the whole"
        begins = list(accumulate(sizes[:-1], initial=begin))
        self._taken.update(zip(begins, sizes, strict=True))
        return begins

    def give_back(self, begin: int) -> None:
        """
        Raises:
            ValueError: no range was taken at that offset.
        """
        size = self._taken.pop(begin, None)
        if size is None:
            raise ValueError(f"offset {begin} is given back twice, or was never taken")
        self._free.give(begin, size)
