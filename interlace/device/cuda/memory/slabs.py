"""Pieces of memory cut from slabs: large allocations that are kept, since making them is slow."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.device.cuda.memory.ranges import RangeAllocator


class Slabs:
    """Which addresses of which slabs are taken; it touches no memory, and has no lock."""

    def __init__(self) -> None:
        self._slabs: dict[int, RangeAllocator] = {}  # by first address
        self._owners: dict[int, int] = {}  # the slab of each address that is taken

    @property
    def free_bytes(self) -> int:
        """Bytes that ``take`` may give, in however many pieces."""
        return sum(slab.free_bytes for slab in self._slabs.values())

    @property
    def used_bytes(self) -> int:
        """Bytes in pieces, rounding included."""
        return sum(slab.size_bytes - slab.free_bytes for slab in self._slabs.values())

    @property
    def unused(self) -> Sequence[int]:
        """The first addresses of slabs of which nothing is taken."""
        return [begin for begin, slab in self._slabs.items() if slab.empty]

    def add(self, begin: int, nbytes: int) -> None:
        """A slab of so many bytes at that address."""
        self._slabs[begin] = RangeAllocator(nbytes)

    def remove(self, begin: int) -> None:
        """A slab of which nothing is taken is given back."""
        del self._slabs[begin]

    def take(self, nbytes: int) -> tuple[int, int] | None:
        """A piece, as its slab and its offset there; ``None`` if no slab has room."""
        for begin, slab in self._slabs.items():
            offset = slab.take(nbytes)
            if offset is not None:
                self._owners[begin + offset] = begin
                return begin, offset
        return None

    def give_back(self, address: int) -> None:
        """
        Raises:
            ValueError: the piece was given back before, or never taken.
        """
        begin = self._owners.pop(address, None)
        if begin is None:
            raise ValueError(f"a piece at {address:#x} is given back twice, or was never taken")
        self._slabs[begin].give_back(address - begin)

    def clear(self) -> Sequence[int]:
        """Forget everything; the first addresses of the slabs there were."""
        begins = list(self._slabs)
        self._slabs.clear()
        self._owners.clear()
        return begins
