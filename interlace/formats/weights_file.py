"""A torch model's weights in one file, in the order in which an execution reads them."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from interlace.formats.runner import Extent, ExtentsFile, WeightUse
from interlace.formats.tensor_file import HEADER_LIMIT_BYTES, read_table, view, write_tensors


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


class ExtentsLayout:
    """Where the weights of a file lie; files of one architecture have it in common.

    ``extents`` are those of the ``uses``, ``extent_bytes`` what memory they take, ``use_of`` says
    which use reads a weight first.

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
        self.use_of = {name: n for n, use in enumerate(uses) for name in use.weights}
        begins = [self.places[use.weights[0]].begin for use in uses]
        ends = [*begins, self.nbytes][1:]
        self.extents = tuple(
            Extent(begin, end - begin) for begin, end in zip(begins, ends, strict=True)
        )
        self.extent_bytes = tuple(extent.nbytes for extent in self.extents)
        self.weights_bytes = tuple(
            sum(self.places[name].nbytes for name in use.weights) for use in uses
        )


class WeightsFile(ExtentsFile):
    """Such a file of a torch model; one of a known ``layout`` is opened when it is first needed.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file, or was cut short.
    """

    def __init__(self, path: Path, layout: ExtentsLayout | None = None) -> None:
        super().__init__(path, None if layout is None else layout.nbytes)
        self.layout = layout or ExtentsLayout(path, self._mapped)
        self.uses, self.extents = self.layout.uses, self.layout.extents
        self.weights_bytes = self.layout.weights_bytes

    def tensors(
        self, index: int, memory: memoryview | None = None, at: int = 0
    ) -> dict[str, torch.Tensor]:
        """One use's weights in the mapping, or where its extent lies ``at`` a place of memory."""
        names = self.uses[index].weights
        if memory is None:
            return {name: view(self._mapped, self.layout.places[name]) for name in names}
        shift = at - self.extents[index].begin
        moved = {name: self.layout.places[name] for name in names}
        return {
            name: view(memory, place._replace(begin=place.begin + shift))
            for name, place in moved.items()
        }


def header_of(path: Path) -> tuple[int, bytes]:
    """The file's bytes, and what it says of itself: equal for all models of an architecture.

    Of the file the page cache has no more afterwards than before.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        head = file.read(min(int.from_bytes(file.read(8), "little"), HEADER_LIMIT_BYTES))
        pages = -(-file.tell() // mmap.PAGESIZE)
        os.posix_fadvise(file.fileno(), 0, pages * mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
        return os.fstat(file.fileno()).st_size, head
