"""Memory cut from slabs, since making it is slow: device memory, and page-locked memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from threading import Lock
from typing import Any, Final, Protocol

from interlace.device.cuda.driver.api import CudaError, DeviceMemory, Driver, MappedBlock
from interlace.shm.extents import Extents, rounded

GRANULE_BYTES: Final = 512  #: as the driver's own allocations


class Slabs:
    """Allocated addresses by slab; it touches no memory, and has no lock."""

    def __init__(self) -> None:
        self._slabs: dict[int, Extents] = {}  # by first address
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
        """The first addresses of empty slabs."""
        return [begin for begin, slab in self._slabs.items() if slab.empty]

    def add(self, begin: int, nbytes: int) -> None:
        """A slab of so many bytes at that address."""
        self._slabs[begin] = Extents(nbytes, GRANULE_BYTES)

    def remove(self, begin: int) -> None:
        """Forget an empty slab."""
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


#: What is taken at the start and what is added at a time: this much, or a part of what is free.
_FIRST_BYTES: Final = 1 << 30
_MORE_BYTES: Final = 512 << 20
_PART: Final = 16


class PooledDriver:
    """A driver whose device memory is cut from slabs; everything else is the driver's own.

    The driver takes memory back only when all work on the GPU has ended, and later work waits. So
    ``free`` returns memory to a slab, for the next model; only ``trim`` returns it to the driver.
    ``memory`` counts free memory in slabs as free.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = Lock()
        self._slabs = Slabs()
        self._add(_part(driver, _FIRST_BYTES))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def memory(self) -> DeviceMemory:
        free, total = self._driver.memory()
        with self._lock:
            return DeviceMemory(free + self._slabs.free_bytes, total)

    def allocate(self, nbytes: int) -> int:
        with self._lock:
            found = self._slabs.take(nbytes)
            if found is None:
                self._more(nbytes)
                found = self._slabs.take(nbytes)
            assert found is not None
            return sum(found)

    def free(self, address: int) -> None:
        with self._lock:
            try:
                self._slabs.give_back(address)
            except ValueError as error:
                raise CudaError("cuMemFree", "CUDA_ERROR_INVALID_VALUE", str(error)) from None

    def ipc_handle(self, address: int) -> bytes:
        """A handle opens a whole slab, from its begin: other processes would read something else.

        Raises:
            CudaError: always.
        """
        why = "what is cut from a slab is not shared between processes"
        raise CudaError("cuIpcGetMemHandle", "CUDA_ERROR_NOT_SUPPORTED", why)

    def close_slabs(self) -> None:
        """Give all of it back; nothing uses it any more. Every step is tried."""
        with ExitStack() as steps:
            for begin in self._slabs.clear():
                steps.callback(self._driver.free, begin)

    def trim(self) -> None:
        """Give empty slabs back to the driver; running work may wait for it."""
        with self._lock:
            for begin in self._slabs.unused:
                self._slabs.remove(begin)
                self._driver.free(begin)

    def _more(self, nbytes: int) -> None:
        """A slab with room for so much, with some to spare if there is memory for it."""
        needed = rounded(nbytes, GRANULE_BYTES)
        try:
            self._add(max(needed, _part(self._driver, _MORE_BYTES)))
        except CudaError as error:
            if error.sticky:
                raise
            self._add(needed)

    def _add(self, nbytes: int) -> None:
        self._slabs.add(self._driver.allocate(nbytes), nbytes)


def _part(driver: Driver, most_bytes: int) -> int:
    return max(1 << 16, min(most_bytes, driver.memory().free_bytes // _PART))


#: Room for the parameters of a few thousand graphs: pinning more would be felt by those served.
_SLAB_BYTES: Final = 1 << 22
#: What a slab after the first has at most, unless one piece needs more.
_GROWN_BYTES: Final = 2 << 30
_WORD_BYTES: Final = 8


class PinnedSource(Protocol):
    """Where slabs come from: the driver, or ``TouchedPages``."""

    def allocate_mapped(self, nbytes: int) -> MappedBlock: ...
    def free_mapped(self, mapped: MappedBlock) -> None: ...


class MappedMemory:
    """Pieces that host and GPU both see; at least 64-byte aligned, zero when new.

    Any thread may take and give back: graphs are captured on one thread, eager programs and rings
    are made on the thread that launches batches. If two pieces overlapped, a batch could read the
    inputs of another.
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
        """A piece; a new slab is pinned if none has room."""
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
        """Unpin everything. Every step is tried."""
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
