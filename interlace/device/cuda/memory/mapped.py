"""Small pieces of page-locked mapped memory, cut from slabs: each pinning is slow and page-wide."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from threading import Lock
from typing import Final

from interlace.device.cuda.driver.api import Driver, MappedBlock
from interlace.shm.buddy_allocator import BuddyAllocator

#: Room for the parameters of a few thousand graphs: pinning more would be felt by those served.
_SLAB_BYTES: Final = 1 << 22
_WORD_BYTES: Final = 8


class MappedMemory:
    """Pieces that host and GPU both see; at least 64-byte aligned, zero when new.

    Any thread may take and give back: graphs are captured aside while eager programs and rings are
    made where batches are launched, and two pieces that overlap are the inputs of another batch.
    """

    def __init__(self, driver: Driver, slab_bytes: int = _SLAB_BYTES) -> None:
        self._driver = driver
        self._slab_bytes = slab_bytes
        self._slabs: list[tuple[MappedBlock, BuddyAllocator]] = []
        self._owners: dict[int, tuple[BuddyAllocator, int]] = {}
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes in pieces, rounding included."""
        return sum(blocks.used_bytes for _, blocks in self._slabs)

    def take(self, nbytes: int) -> MappedBlock:
        """A piece; a new slab is pinned if none has room.

        Raises:
            CudaError: nothing more can be pinned.
        """
        with self._lock:
            for slab, blocks in self._slabs:
                offset = blocks.alloc(nbytes)
                if offset is not None:
                    return self._piece(slab, blocks, offset, nbytes)
            size = max(self._slab_bytes, 1 << max(6, (nbytes - 1).bit_length()))
            slab, blocks = self._driver.allocate_mapped(size), BuddyAllocator(size)
            self._slabs.append((slab, blocks))
            offset = blocks.alloc(nbytes)
            assert offset is not None
            return self._piece(slab, blocks, offset, nbytes)

    def give_back(self, piece: MappedBlock) -> None:
        """The GPU uses the piece no more.

        Raises:
            ValueError: it was given back before, or never taken.
        """
        with self._lock:
            owner = self._owners.pop(piece.host, None)
            if owner is None:
                raise ValueError("a piece of mapped memory is given back twice, or was never taken")
            blocks, offset = owner
            blocks.free(offset)

    def close(self) -> None:
        """Unpin everything.

        Raises:
            CudaError: the driver refused at least once; everything was tried.
        """
        slabs, self._slabs = self._slabs, []
        self._owners.clear()
        with ExitStack() as steps:
            for slab, _ in slabs:
                steps.callback(self._driver.free_mapped, slab)

    def _piece(
        self, slab: MappedBlock, blocks: BuddyAllocator, offset: int, nbytes: int
    ) -> MappedBlock:
        self._owners[slab.host + offset] = (blocks, offset)
        return MappedBlock(slab.host + offset, slab.device + offset, nbytes)


class MappedWords:
    """64-bit words that the host writes and kernels read when they run; zero at first."""

    def __init__(self, memory: MappedMemory, count: int) -> None:
        self._memory = memory
        self._piece = memory.take(count * _WORD_BYTES)
        self._words = (ctypes.c_uint64 * count).from_address(self._piece.host)
        self._words[:] = [0] * count

    def address(self, at: int) -> int:
        """Where the GPU finds a word."""
        return self._piece.device + at * _WORD_BYTES

    def put(self, at: int, value: int) -> None:
        self._words[at] = value

    def get(self, at: int) -> int:
        return self._words[at]

    def put_all(self, at: int, values: Sequence[int]) -> None:
        """Write words that follow each other."""
        self._words[at : at + len(values)] = list(values)

    def close(self) -> None:
        """Give the memory back; no kernel reads it any more."""
        self._memory.give_back(self._piece)
