"""Ranges cut from a span of addresses, first fit, and joined again when they are given back."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

ALIGN_BYTES: Final = 512  #: as the driver's own allocations


class RangeAllocator:
    """Which bytes of ``size_bytes`` are taken. Offsets only: it touches no memory."""

    def __init__(self, size_bytes: int) -> None:
        """``size_bytes`` is rounded down to whole pieces of the alignment."""
        whole = size_bytes // ALIGN_BYTES * ALIGN_BYTES
        self.size_bytes = whole
        self.free_bytes = whole
        self._begins = [0] if whole else []  # of free ranges, in order, never adjacent
        self._sizes = [whole] if whole else []
        self._taken: dict[int, int] = {}

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
        for place, there in enumerate(self._sizes):
            if there < size:
                continue
            begin = self._begins[place]
            if there == size:
                del self._begins[place], self._sizes[place]
            else:
                self._begins[place], self._sizes[place] = begin + size, there - size
            self._taken[begin] = size
            self.free_bytes -= size
            return begin
        return None

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
        self.free_bytes += size
        place = bisect(self._begins, begin)
        if place < len(self._begins) and begin + size == self._begins[place]:
            size += self._sizes.pop(place)
            del self._begins[place]
        if place and self._begins[place - 1] + self._sizes[place - 1] == begin:
            self._sizes[place - 1] += size
        else:
            self._begins.insert(place, begin)
            self._sizes.insert(place, size)
