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

from interlace.formats.tensor_file import (
    HEADER_LIMIT_BYTES,
    map_file,
    read_table,
    view,
    write_tensors,
)
from interlace.formats.weight_uses import WeightUse

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def write_weights(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    uses: Sequence[WeightUse],
    architecture: str = "",
) -> None:
    """Write a new file; ``uses`` name each tensor once.

    Raises:
        OSError: no space, no permission, or the file exists.
    """
    note = json.dumps([architecture, [[use.operator, list(use.weights)] for use in uses]])
    write_tensors(path, {name: tensors[name] for use in uses for name in use.weights}, note)


class Extent(NamedTuple):
    """A run of bytes of the file: the weights of one use, and the gap behind them."""

    begin: int
    nbytes: int


class WeightsLayout:
    """Where the weights of a file lie; models of one architecture have it in common.

    ``extents`` are those of the ``uses``, ``extent_bytes`` what memory they take; ``weights_bytes``
    is what each use's weights weigh, without gaps.

    Raises:
        ValueError: the file is not such a file, or was cut short.
    """

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.nbytes = len(mapped)
        self.places, note = read_table(path, mapped)
        self.architecture, noted = json.loads(note or '["", []]')
        uses = [WeightUse(operator, tuple(names)) for operator, names in noted]
        if [name for use in uses for name in use.weights] != list(self.places):
            raise ValueError(f"{path}: its note does not name the tensors in their order")
        self.uses = tuple(uses)
        begins = [self.places[use.weights[0]].begin for use in uses]
        ends = [*begins[1:], self.nbytes]
        self.extents = tuple(
            Extent(begin, end - begin) for begin, end in zip(begins, ends, strict=True)
        )
        self.extent_bytes = tuple(extent.nbytes for extent in self.extents)
        self.weights_bytes = tuple(
            sum(self.places[name].nbytes for name in use.weights) for use in uses
        )


class _OpenFile:
    """It is kept open, so that a folder that is cleaned meanwhile takes nothing away."""

    def __init__(self, path: Path) -> None:
        with path.open("rb", buffering=0) as file:
            self.mapped = map_file(file)
            self.fd = os.dup(file.fileno())
        finalize(self, os.close, self.fd)


class WeightsFile:
    """Such a file, mapped privately while it is read or executed from.

    One of a known ``layout`` is opened when it is first needed.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file, or was cut short.
    """

    def __init__(self, path: Path, layout: WeightsLayout | None = None) -> None:
        self.path = path
        self._open = None if layout is not None else _OpenFile(path)
        self.layout = layout or WeightsLayout(path, self._now.mapped)
        self.uses, self.extents = self.layout.uses, self.layout.extents
        self.weights_bytes = self.layout.weights_bytes

    @property
    def nbytes(self) -> int:
        """All of the file."""
        return self.layout.nbytes

    @property
    def _now(self) -> _OpenFile:
        if self._open is None:
            self._open = _OpenFile(self.path)
            if len(self._open.mapped) != self.layout.nbytes:
                raise ValueError(f"{self.path}: it is not the file that was written")
        return self._open

    def rest(self) -> None:
        """Close it until it is needed again."""
        self._open = None

    def tensors(
        self, index: int, memory: memoryview | None = None, at: int = 0
    ) -> dict[str, torch.Tensor]:
        """One use's weights in the mapping, or where its extent lies ``at`` a place of memory."""
        names = self.uses[index].weights
        if memory is None:
            return {name: view(self._now.mapped, self.layout.places[name]) for name in names}
        shift = at - self.extents[index].begin
        moved = {name: self.layout.places[name] for name in names}
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
        file = self._now
        while left:
            count = os.preadv(file.fd, [memory[at : at + left]], begin)
            if not count:
                raise OSError(f"{self.path}: it ends at {begin} bytes")
            begin, at, left = begin + count, at + count, left - count

    def cached(self, index: int) -> bool:
        """Whether one use's bytes are all in the page cache (``mincore``), not on disk only."""
        begin, nbytes = self.extents[index]
        first = begin // mmap.PAGESIZE * mmap.PAGESIZE
        pages = -(-(begin + nbytes - first) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._now.mapped)) + first
        length = min(pages * mmap.PAGESIZE, len(self._now.mapped) - first)
        if _LIBC.mincore(ctypes.c_void_p(start), ctypes.c_size_t(length), found):
            return True  # the kernel does not tell
        return bytes(found).count(1) == pages

    def forget(self) -> None:
        """Have the mapping's pages found anew when they are next read; they stay in the cache."""
        self._now.mapped.madvise(mmap.MADV_DONTNEED)

    def drop(self) -> None:
        """Have the file's pages leave the page cache, where nobody else has them mapped."""
        os.posix_fadvise(self._now.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def header_of(path: Path) -> bytes:
    """What the file says of itself: equal for all models of an architecture.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(min(int.from_bytes(file.read(8), "little"), HEADER_LIMIT_BYTES))
