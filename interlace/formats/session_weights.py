"""Swapped weights of a session: it keeps their addresses for life.

onnxruntime maps a graph's file of weights once, and never looks it up again. So the pages at those
addresses are exchanged: for pages of the file, or of the memory for weights. One system call
exchanges a piece, atomically for concurrent readers. Both hold the same bytes, so a model may run
at any time, and never waits.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, NamedTuple

from interlace.formats.onnx_layout import OnnxWeightsFile
from interlace.formats.runner import ArrivingWeights, Extent, OnArrived

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = _LIBC.mremap.restype = ctypes.c_void_p
_FAILED: Final = ctypes.c_void_p(-1).value
_MAP_FIXED: Final = 0x10
_MREMAP_MAYMOVE_FIXED: Final = 3
_POPULATE_READ: Final = 22  # MADV_POPULATE_READ, which Python does not name


class MappedPiece(NamedTuple):
    """A run of a file's bytes, from ``begin`` on, that lies at an address of this process."""

    address: int
    begin: int
    nbytes: int


def mapped_pieces(path: Path) -> frozenset[MappedPiece]:
    """Where this process has a file mapped to be read and written."""
    wanted = str(path.resolve())
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, begin, _, _, *named = line.split(maxsplit=5)
        if access == "rw-p" and named == [wanted]:
            start, end = (int(one, 16) for one in addresses.split("-"))
            found.add(MappedPiece(start, int(begin, 16), end - start))
    return frozenset(found)


class SessionWeights:
    """Weights of one session; they are found in their file. Its extents are whole pages.

    Raises:
        ValueError: the session does not have all of them mapped at ``pieces``.
    """

    def __init__(self, file: OnnxWeightsFile, pieces: Iterable[MappedPiece]) -> None:
        self.file = file
        self.nbytes = tuple(extent.nbytes for extent in file.extents)
        ordered = sorted(pieces, key=lambda piece: piece.begin)
        self._pieces = [_within(extent, ordered) for extent in file.extents]
        for extent, found in zip(file.extents, self._pieces, strict=True):
            if sum(piece.nbytes for piece in found) != extent.nbytes:
                raise ValueError(f"{file.path}: not mapped at {extent.begin} by the session")
        self._arriving: ArrivingWeights | None = None
        self.leave(range(len(file.uses)))

    def place(self, places: Mapping[int, int], memory: memoryview) -> None:
        """Have the session find some uses' weights in memory, at these offsets; they are there.

        The memory is of a shared mapping, and offsets are whole pages.

        Raises:
            OSError: the kernel has no room for more mappings.
        """
        for index, at in places.items():
            self._exchange(index, memory, at)

    def leave(self, indices: Iterable[int]) -> None:
        """Have the session find these uses' weights in the file.

        Raises:
            OSError: the kernel has no room for more mappings.
        """
        for index in indices:
            for address, begin, nbytes in self._pieces[index]:
                _check(
                    _LIBC.mmap(
                        ctypes.c_void_p(address),
                        ctypes.c_size_t(nbytes),
                        mmap.PROT_READ,
                        mmap.MAP_PRIVATE | _MAP_FIXED,
                        self.file.fd,
                        ctypes.c_long(begin),
                    )
                )

    def fetch(self, places: Mapping[int, int], memory: memoryview, done: OnArrived) -> None:
        """Have these uses' weights come into memory; ``done`` is called once, by another thread.

        The session finds each in the file until it has come.
        """

        def there(index: int) -> None:
            self._exchange(index, memory, places[index])
            for address, _, nbytes in self._pieces[index]:
                # The next run finds its pages; where the kernel cannot, before 5.14, it faults.
                _LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), _POPULATE_READ)

        self.close()
        self._arriving = ArrivingWeights(self.file, places, memory, done, there)

    def cancel(self) -> None:
        """Stop a fetch; its ``done`` says so, unless it was too late."""
        if self._arriving is not None:
            self._arriving.cancel()

    def arrivals(self) -> AbstractContextManager[object]:
        """To run the model in: it waits for nothing."""
        return nullcontext()

    def close(self) -> None:
        """Stop what is on its way: from now on nothing is exchanged."""
        if self._arriving is not None:
            self._arriving.end()

    def _exchange(self, index: int, memory: memoryview, at: int) -> None:
        shift = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + at
        shift -= self.file.extents[index].begin
        for address, begin, nbytes in self._pieces[index]:
            _check(
                _LIBC.mremap(
                    ctypes.c_void_p(begin + shift),
                    ctypes.c_size_t(0),  # the same pages once more, as of a shared mapping
                    ctypes.c_size_t(nbytes),
                    _MREMAP_MAYMOVE_FIXED,
                    ctypes.c_void_p(address),
                )
            )


def _within(extent: Extent, pieces: Iterable[MappedPiece]) -> list[MappedPiece]:
    found = []
    for address, begin, nbytes in pieces:
        first = max(begin, extent.begin)
        end = min(begin + nbytes, extent.begin + extent.nbytes)
        if first < end:
            found.append(MappedPiece(address + first - begin, first, end - first))
    return found


def _check(address: int | None) -> None:
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"weights cannot be mapped: {os.strerror(number)}")
