"""Runs of bytes of any length out of one range, given out and taken back."""

from __future__ import annotations

from bisect import bisect_left


class Extents:
    """Free runs by offset, merged with their neighbours. Offsets only: it touches no memory."""

    def __init__(self, size_bytes: int) -> None:
        self.free_bytes = size_bytes
        self._begins = [0] if size_bytes else []
        self._lengths = [size_bytes] if size_bytes else []

    def take(self, nbytes: int, alignment: int = 1) -> int | None:
        """Offset of ``nbytes`` in the smallest free run that has them; ``None`` if none does.

        The offset is a multiple of ``alignment``.
        """
        fitting = [
            place
            for place, (begin, length) in enumerate(zip(self._begins, self._lengths, strict=True))
            if length >= nbytes + -begin % alignment
        ]
        if nbytes <= 0 or not fitting:
            return None
        place = min(fitting, key=self._lengths.__getitem__)
        begin, length = self._begins[place], self._lengths[place]
        offset = begin + -begin % alignment
        left = [(begin, offset - begin), (offset + nbytes, begin + length - offset - nbytes)]
        self._begins[place : place + 1] = [at for at, size in left if size]
        self._lengths[place : place + 1] = [size for _, size in left if size]
        self.free_bytes -= nbytes
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Take a run back, or a part of one.

        Raises:
            ValueError: some of it is free.
        """
        place = bisect_left(self._begins, offset)
        after = place < len(self._begins) and self._begins[place] < offset + nbytes
        end = self._begins[place - 1] + self._lengths[place - 1] if place else 0
        if after or end > offset:
            raise ValueError(f"{nbytes} bytes at {offset} were not given out, or only in part")
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
