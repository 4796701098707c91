"""Small pieces of page-locked mapped memory, cut from slabs: each pinning is slow and page-wide."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from threading import Lock
from typing import Final, Protocol

from interlace.device.cuda.driver.api import MappedBlock
from interlace.device.cuda.memory.pooled import GRANULE_BYTES, Slabs
from interlace.shm.extents import rounded

#: Room for the parameters of a few thousand graphs: pinning more would be felt by those served.
_SLAB_BYTES: Final = 1 << 22
#: What a slab after the first has at most, unless one piece needs more.
_GROWN_BYTES: Final = 2 << 30
_WORD_BYTES: Final = 8


class PinnedSource(Protocol):
    """Where slabs come from: the driver, or ``touched_pages.TouchedPages``."""

    def allocate_mapped(self, nbytes: int) -> MappedBlock: ...
    def free_mapped(self, mapped: MappedBlock) -> None: ...


class MappedMemory:
    """Pieces that host and GPU both see; at least 64-byte aligned, zero when new.

    Any thread may take and give back: graphs are captured on one thread while eager programs and
    rings are made where batches are launched, and two pieces that overlap would be the inputs of
    another batch.
    """

    def __init__(self, source: PinnedSource, slab_bytes: int = _SLAB_BYTES) -> None:
        self._source = source
        self._slab_bytes = slab_bytes
        self._blocks: dict[int, MappedBlock] = {}  # by the host's address
        self._slabs = Slabs()
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes in pieces, rounding included."""
        return self._slabs.used_bytes

    def take(self, nbytes: int) -> MappedBlock:
        """A piece; a new slab is pinned if none has room.

        Raises:
            CudaError: nothing more can be pinned.
        """
        with self._lock:
            found = self._slabs.take(nbytes)
            if found is None:
                # The first slab is what was asked for at the start, maybe most of the memory.
                grown = min(self._slab_bytes, _GROWN_BYTES) if self._blocks else self._slab_bytes
                size = max(grown, rounded(nbytes, GRANULE_BYTES))
                block = self._source.allocate_mapped(size)
                self._blocks[block.host] = block
                self._slabs.add(block.host, size)
                found = self._slabs.take(nbytes)
            assert found is not None
            slab, offset = found
            return MappedBlock(slab + offset, self._blocks[slab].device + offset, nbytes)

    def give_back(self, piece: MappedBlock) -> None:
        """The GPU uses the piece no more.

        Raises:
            ValueError: it was given back before, or never taken.
        """
        with self._lock:
            self._slabs.give_back(piece.host)

    def close(self) -> None:
        """Unpin everything.

        Raises:
            CudaError: the driver refused at least once; everything was tried.
        """
        with ExitStack() as steps:
            for begin in self._slabs.clear():
                steps.callback(self._source.free_mapped, self._blocks.pop(begin))


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
