"""A model's weights in one file, in the order in which an execution reads them."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from weakref import finalize

import torch

from interlace.formats.tensor_file import map_file, read_table, view, write_tensors
from interlace.formats.weight_uses import WeightUse

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def write_weights(
    path: Path, tensors: Mapping[str, torch.Tensor], uses: Sequence[WeightUse]
) -> None:
    """Write a new file; ``uses`` name each tensor once.

    Raises:
        OSError: no space, no permission, or the file exists.
    """
    note = json.dumps([[use.operator, list(use.weights)] for use in uses])
    write_tensors(path, {name: tensors[name] for use in uses for name in use.weights}, note)


class Extent(NamedTuple):
    """A run of bytes of the file: the weights of one use, and the gap behind them."""

    begin: int
    nbytes: int


class WeightsFile:
    """Such a file, open and mapped privately. ``extents`` are those of its ``uses``.

    ``weights_bytes`` is what each use's weights weigh, without gaps.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file, or was cut short.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb", buffering=0) as file:
            self._mapped = map_file(file)
            self._fd = os.dup(file.fileno())
        # Kept open, so that a folder that is cleaned meanwhile takes nothing away.
        finalize(self, os.close, self._fd)
        self._places, note = read_table(path, self._mapped)
        uses = [WeightUse(operator, tuple(names)) for operator, names in json.loads(note or "[]")]
        if [name for use in uses for name in use.weights] != list(self._places):
            raise ValueError(f"{path}: its note does not name the tensors in their order")
        self.path = path
        self.uses = tuple(uses)
        begins = [self._places[use.weights[0]].begin for use in uses]
        ends = [*begins[1:], len(self._mapped)]
        self.extents = tuple(
            Extent(begin, end - begin) for begin, end in zip(begins, ends, strict=True)
        )
        self.weights_bytes = tuple(
            sum(self._places[name].nbytes for name in use.weights) for use in uses
        )

    @property
    def nbytes(self) -> int:
        """All of the file."""
        return len(self._mapped)

    def tensors(
        self, index: int, memory: memoryview | None = None, at: int = 0
    ) -> dict[str, torch.Tensor]:
        """One use's weights in the mapping, or where its extent lies ``at`` a place of memory."""
        names = self.uses[index].weights
        if memory is None:
            return {name: view(self._mapped, self._places[name]) for name in names}
        shift = at - self.extents[index].begin
        moved = {name: self._places[name] for name in names}
        return {
            name: view(memory, place._replace(begin=place.begin + shift))
            for name, place in moved.items()
        }

    def read(self, index: int, memory: memoryview, at: int) -> None:
        """Read one use's extent into memory.

        Raises:
            OSError: the file cannot be read to its end.
        """
        begin, left = self.extents[index]
        while left:
            count = os.preadv(self._fd, [memory[at : at + left]], begin)
            if not count:
                raise OSError(f"{self.path}: it ends at {begin} bytes")
            begin, at, left = begin + count, at + count, left - count

    def cached(self, index: int) -> bool:
        """Whether one use's bytes are all in the page cache (``mincore``), not on disk only."""
        begin, nbytes = self.extents[index]
        first = begin // mmap.PAGESIZE * mmap.PAGESIZE
        pages = -(-(begin + nbytes - first) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._mapped)) + first
        length = min(pages * mmap.PAGESIZE, len(self._mapped) - first)
        if _LIBC.mincore(ctypes.c_void_p(start), ctypes.c_size_t(length), found):
            return True  # the kernel does not tell
        return bytes(found).count(1) == pages

    def forget(self) -> None:
        """Have the mapping's pages found anew when they are next read; they stay in the cache."""
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def drop(self) -> None:
        """Have the file's pages leave the page cache, where nobody else has them mapped."""
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
