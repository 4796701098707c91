"""A file of weights, cut into extents in the order in which an execution reads them.

It is mapped, and that mapping is always right to read; extents are also read into other memory.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final, NamedTuple
from weakref import finalize

from interlace.formats.page_cache import cached_pages, map_file

#: Operators that read some rows of their weights, as torch and ONNX call them.
_LOOKUPS: Final = frozenset({"embedding", "Gather"})


class WeightUse(NamedTuple):
    """An operator ("linear", "embedding") and the weights that no operator before it read."""

    operator: str
    weights: tuple[str, ...]


class Extent(NamedTuple):
    """A run of bytes of the file: the weights of one use, and the gap behind them."""

    begin: int
    nbytes: int


class _OpenFile:
    """Kept open, so that a folder that is cleaned meanwhile takes nothing away."""

    def __init__(self, path: Path) -> None:
        with path.open("rb", buffering=0) as file:
            self.mapped = map_file(file)
            self.fd = os.dup(file.fileno())
        finalize(self, os.close, self.fd)


class ExtentsFile:
    """Such a file, mapped privately while it is read or executed from.

    One of a size that is known is opened when it is first needed.

    ``uses`` are told by whoever knows the file, with the extent of each; ``weights_bytes`` is what
    each use's weights weigh, without gaps.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is too short, or another than it was.
    """

    uses: tuple[WeightUse, ...]
    extents: tuple[Extent, ...]
    weights_bytes: tuple[int, ...]

    def __init__(self, path: Path, nbytes: int | None = None) -> None:
        self.path = path
        self._open = _OpenFile(path) if nbytes is None else None
        self.nbytes = len(self._now.mapped) if nbytes is None else nbytes

    @property
    def _now(self) -> _OpenFile:
        if self._open is None:
            opened = _OpenFile(self.path)
            if len(opened.mapped) != self.nbytes:
                raise ValueError(
                    f"{self.path}: it is not the file that was written; "
                    "unload the model and load it again"
                )
            self._open = opened
        return self._open

    @property
    def tables(self) -> tuple[Extent, ...]:
        """Extents of which an execution reads some rows: it need not wait for the others."""
        pairs = zip(self.uses, self.extents, strict=True)
        return tuple(extent for use, extent in pairs if use.operator in _LOOKUPS)

    @property
    def _mapped(self) -> mmap.mmap:
        return self._now.mapped

    @property
    def fd(self) -> int:
        return self._now.fd

    def rest(self) -> None:
        """Close it until it is needed again; what was given out of it stays right."""
        self._open = None

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
        return all(cached_pages(self._mapped, *self.extents[index]))

    def forget(self) -> None:
        """Have the mapping's pages found anew when they are next read; they stay in the cache."""
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def forget_use(self, index: int) -> None:
        """The same of one use's, if the file is open; of the first with what lies before it."""
        if self._open is not None:
            begin, nbytes = self.extents[index]
            first = begin // mmap.PAGESIZE * mmap.PAGESIZE if index else 0
            self._open.mapped.madvise(mmap.MADV_DONTNEED, first, begin + nbytes - first)

    def drop(self) -> None:
        """Have the file's pages leave the page cache, where nobody else has them mapped."""
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
