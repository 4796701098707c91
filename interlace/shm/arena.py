"""Arenas of shared memory: one writer that allocates, any number of processes that read."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Final

from interlace.core.tensor import Span

MIN_ORDER: Final = 6  #: blocks are at least 64 bytes, and so 64-byte aligned
QUICK_BLOCKS: Final = 64  #: freed blocks kept unmerged per size, reused last in, first out


class BuddyAllocator:
    """Power-of-two blocks of a range of bytes. Offsets only: it touches no memory.

    Freed blocks first wait on a bounded stack of their size. The next block of that size comes from
    the stack: its bytes are still in the cache, and no block is split. When the stack is full, or
    no block fits an allocation, blocks are merged with their buddies. So freeing everything gives
    the whole range back. This is the "lazy buddy" of Barkley and Lee (1989), with a fixed slack.
    """

    def __init__(self, size_bytes: int) -> None:
        top = size_bytes.bit_length()
        self._free: list[dict[int, None]] = [{} for _ in range(top + 1)]
        self._quick: list[list[int]] = [[] for _ in range(top + 1)]
        self._orders: dict[int, int] = {}
        self._filled = 0  # bit k is set while self._free[k] holds a block
        self.used_bytes = self.peak_bytes = 0  #: the peak since somebody set it back
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
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return offset

    def free(self, offset: int) -> None:
        """Give a block back. Raises ValueError if none was allocated at that offset."""
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


_FD_BITS: Final = 16
_TRIM_BYTES: Final = 1 << 16
#: What of an arena for requests is there from the start, and stays: a queue of some 30 images.
RESERVE_BYTES: Final = 32 << 20
#: Of what was in use at once, how much counts as needed one ``trim_unused`` later; and the part of
#: an arena that one looks at.
_STAYS: Final = 0.995
_STEP_BYTES: Final = 16 << 20
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, which Python does not name


def _number(fd: int) -> int:
    # The inode number is the serial: the kernel never gives one twice, and a reader can check it.
    if fd >> _FD_BITS:
        raise OSError(f"file descriptor {fd} is too large for an arena: over {1 << _FD_BITS}")
    return (os.fstat(fd).st_ino << _FD_BITS) | fd


def _open(owner_pid: int, number: int, flags: int) -> int:
    path = f"/proc/{owner_pid}/fd/{number & ((1 << _FD_BITS) - 1)}"
    try:
        fd = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise ValueError(f"arena {number} of process {owner_pid} is gone: {error}") from error
    if os.fstat(fd).st_ino != number >> _FD_BITS:
        os.close(fd)
        raise ValueError(f"arena {number} of process {owner_pid} is gone")
    return fd


class Arena:
    """The one writer of an arena. Memory is taken page by page as it is first written.

    ``number`` names the arena in every process: (inode number << 16) | descriptor in the process
    that made it, never used twice.
    """

    def __init__(self, fd: int, number: int, memory: mmap.mmap) -> None:
        self.number = number
        self.size_bytes = len(memory)
        self._fd = fd
        self._mmap = memory
        self._memory = memoryview(memory)
        self._blocks = BuddyAllocator(self.size_bytes)
        self._needed_bytes = 0.0
        self._trimmed = 0  # how far ``trim_unused`` came

    @classmethod
    def create(cls, size_bytes: int) -> Arena:
        """A new arena of ``size_bytes`` (rounded up to whole pages), owned by this process.

        Raises:
            ValueError: the size is not positive.
            OSError: no memory or file descriptor is left.
        """
        if size_bytes <= 0:
            raise ValueError(f"an arena of {size_bytes} bytes: expected a positive size")
        pages = -(-size_bytes // mmap.PAGESIZE)
        fd = os.memfd_create("interlace-arena", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, pages * mmap.PAGESIZE)
            return cls(fd, _number(fd), mmap.mmap(fd, pages * mmap.PAGESIZE))
        except OSError as error:
            os.close(fd)
            if error.errno != errno.ENOMEM:
                raise
            raise OSError(
                error.errno,
                f"no room to map an arena of {pages * mmap.PAGESIZE >> 20} MiB of shared memory: "
                f"{error.strerror}; a limit on address space (ulimit -v) must leave room for it",
            ) from None
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def adopt(cls, owner_pid: int, number: int) -> Arena:
        """Become the writer of an arena that another process made for this one.

        Raises:
            ValueError: the arena is gone.
        """
        fd = _open(owner_pid, number, os.O_RDWR)
        return cls(fd, number, mmap.mmap(fd, os.fstat(fd).st_size))

    @property
    def used_bytes(self) -> int:
        """Bytes in allocated blocks, rounding included."""
        return self._blocks.used_bytes

    @property
    def memory(self) -> memoryview:
        """The whole arena, writable."""
        return self._memory

    def alloc(self, nbytes: int) -> int | None:
        """Offset of a block of ``nbytes``, 64-byte aligned; ``None`` when the arena is full."""
        return self._blocks.alloc(nbytes)

    def free(self, offset: int) -> None:
        """Give a block back. Raises ValueError if none was allocated at that offset."""
        self._blocks.free(offset)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Those bytes, writable.

        Raises:
            ValueError: they reach out of the arena.
        """
        return _slice(self._memory, self.number, offset, nbytes)

    def touch(self, nbytes: int | None = None) -> None:
        """Take that much of its memory now, or all: fresh pages cost far more than filling them.

        Raises:
            OSError: there is not that much.
        """
        nbytes = self.size_bytes if nbytes is None else min(nbytes, self.size_bytes)
        try:
            self._mmap.madvise(_POPULATE_WRITE, 0, nbytes)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # a kernel before 5.14
            for offset in range(0, nbytes, mmap.PAGESIZE):
                self._memory[offset] = self._memory[offset]

    def trim(self, start: int = 0, stop: int | None = None) -> None:
        """Give the memory of free blocks of 64 KiB and more back to the system.

        Only what lies between ``start`` and ``stop``, whole pages: all of it takes long.
        """
        stop = self.size_bytes if stop is None else stop
        self._blocks.merge()
        for offset, nbytes in self._blocks.free_blocks(_TRIM_BYTES):
            first, end = max(offset, start), min(offset + nbytes, stop)
            if first < end:
                self._mmap.madvise(mmap.MADV_REMOVE, first, end - first)

    def trim_unused(self) -> None:
        """Give some of the memory back that was not needed lately; for calls at a steady pace.

        Fresh pages cost twenty times what filling them does: a queue that grows into them makes
        itself longer. So what was in use at once stays for about as long as 200 calls.
        """
        blocks = self._blocks
        self._needed_bytes = max(blocks.peak_bytes, _STAYS * self._needed_bytes)
        blocks.peak_bytes = blocks.used_bytes
        held_bytes = os.fstat(self._fd).st_blocks * 512
        if held_bytes > self._needed_bytes + RESERVE_BYTES:
            start, stop = self._trimmed, min(self.size_bytes, self._trimmed + _STEP_BYTES)
            self.trim(start, stop)
            self._trimmed = stop if stop < self.size_bytes else 0

    def wipe(self) -> None:
        """Give all memory back to the system, also what other processes still map."""
        self._mmap.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Unmap; views still held keep their bytes until they go. Twice is once."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        _unmap(self._memory, self._mmap)


class ArenaMap:
    """Arenas by number, mapped read-only on first use from the process that made them.

    ``watchers`` are called with the number of each arena that is forgotten, so that other processes
    drop their mapping too, which keeps a descriptor and the arena's memory.
    """

    def __init__(self, owner_pid: int) -> None:
        self.watchers: list[Callable[[int], None]] = []
        self._owner_pid = owner_pid
        self._views: dict[int, memoryview] = {}
        self._mmaps: dict[int, mmap.mmap] = {}

    def add(self, arena: Arena) -> None:
        """Make known an arena that this process has already mapped."""
        self._views[arena.number] = arena.memory

    def memory(self, number: int) -> memoryview:
        """A whole arena.

        Raises:
            ValueError: the arena is gone.
        """
        view = self._views.get(number)
        return self._map(number) if view is None else view

    def view(self, span: Span) -> memoryview:
        """The bytes of a span.

        Raises:
            ValueError: the arena is gone, or the span reaches out of it.
        """
        number, offset, nbytes = span
        view = self._views.get(number)
        if view is None:
            view = self._map(number)
        return _slice(view, number, offset, nbytes)

    def descriptor(self, number: int) -> int | None:
        """The descriptor, here in its owner, of an arena that is known; ``None`` if it is gone."""
        fd = number & ((1 << _FD_BITS) - 1)
        try:
            there = number in self._views and os.fstat(fd).st_ino == number >> _FD_BITS
        except OSError:
            return None
        return fd if there else None

    def forget(self, number: int) -> None:
        """Drop an arena; unknown numbers pass."""
        view = self._views.pop(number, None)
        mapped = self._mmaps.pop(number, None)
        if view is not None and mapped is not None:
            _unmap(view, mapped)
        if view is not None:
            for watcher in list(self.watchers):
                watcher(number)

    def close(self) -> None:
        """Drop every arena, without calling ``watchers``."""
        self.watchers.clear()
        for number in list(self._views):
            self.forget(number)

    def _map(self, number: int) -> memoryview:
        return self.give(number, _open(self._owner_pid, number, os.O_RDONLY))

    def give(self, number: int, fd: int) -> memoryview:
        """Map an arena whose descriptor this process was given; the descriptor is closed.

        Raises:
            OSError: no memory to map it.
        """
        try:
            mapped = mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._mmaps[number] = mapped
        view = self._views[number] = memoryview(mapped)
        return view


def _slice(memory: memoryview, number: int, offset: int, nbytes: int) -> memoryview:
    if offset < 0 or nbytes < 0 or offset + nbytes > len(memory):
        raise ValueError(
            f"{nbytes} bytes at {offset} reach out of arena {number} of {len(memory)} bytes"
        )
    return memory[offset : offset + nbytes]


def _unmap(view: memoryview, mapped: mmap.mmap) -> None:
    try:
        view.release()
        mapped.close()
    except BufferError:
        pass  # something still reads: the mapping goes with the last view
