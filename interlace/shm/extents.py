"""Runs of bytes of any length out of one range, given out and taken back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


def rounded(nbytes: int, granule_bytes: int) -> int:
    """What a run of ``nbytes`` takes of granules: one at least."""
    return max(1, -(-nbytes // granule_bytes)) * granule_bytes


class Extents:
    """Free runs by offset, merged with their neighbours. Offsets only: it touches no memory.

    Runs are of whole granules; ``size_bytes`` is rounded down to them.
    """

    def __init__(self, size_bytes: int, granule_bytes: int = 1) -> None:
        self._granule_bytes = granule_bytes
        self.size_bytes = self.free_bytes = size_bytes // granule_bytes * granule_bytes
        self._begins = [0] if self.size_bytes else []
        self._lengths = [self.size_bytes] if self.size_bytes else []
        self._taken: dict[int, int] = {}

    @property
    def empty(self) -> bool:
        """Whether nothing of it is given out."""
        return not self._taken

    def take(self, nbytes: int, alignment: int = 1) -> int | None:
        """Offset of ``nbytes`` in the smallest free run that has them; ``None`` if none does.

        The offset is a multiple of ``alignment``.
        """
        size = rounded(nbytes, self._granule_bytes)
        fitting = [
            place
            for place, (begin, length) in enumerate(zip(self._begins, self._lengths, strict=True))
            if length >= size + -begin % alignment
        ]
        if not fitting:
            return None
        place = min(fitting, key=self._lengths.__getitem__)
        begin, length = self._begins[place], self._lengths[place]
        offset = begin + -begin % alignment
        left = [(begin, offset - begin), (offset + size, begin + length - offset - size)]
        self._begins[place : place + 1] = [at for at, rest in left if rest]
        self._lengths[place : place + 1] = [rest for _, rest in left if rest]
        self.free_bytes -= size
        self._taken[offset] = size
        return offset

    def split(self, offset: int, sizes: Sequence[int]) -> list[int]:
        """Make a run that was taken several, one behind the other, each given back by itself.

        ``sizes`` are of whole granules, and together what was taken.
        """
        assert sum(sizes) == self._taken.pop(offset), "the parts are not the whole"
        begins = list(accumulate(sizes[:-1], initial=offset))
        self._taken.update(zip(begins, sizes, strict=True))
        return begins

    def give_back(self, offset: int) -> None:
        """Take a run back. Raises ValueError if none was taken at that offset."""
        nbytes = self._taken.pop(offset, None)
        if nbytes is None:
            raise ValueError(f"offset {offset} is given back twice, or was never taken")
        place = bisect_left(self._begins, offset)
        self._begins.insert(place, offset)
        self._lengths.insert(place, nbytes)
        self.free_bytes += nbytes
        for first in (place, place - 1):
            self._join(first)

    def _join(self, first: int) -> None:
        """Make one run of two that touch."""
        if not 0 <= first < len(self._begins) - 1:
            return
        if self._begins[first] + self._lengths[first] == self._begins[first + 1]:
            self._lengths[first] += self._lengths.pop(first + 1)
            del self._begins[first + 1]
