"""A torch model's weights in one file, in the order in which an execution reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from interlace.formats.extents_file import Extent, ExtentsFile, WeightUse
from interlace.formats.tensor_file import read_table, view, write_tensors


def write_weights(
    path: Path, tensors: Mapping[str, torch.Tensor], uses: Sequence[WeightUse]
) -> None:
    """Write a new file; ``uses`` name each tensor once.

    Raises:
        OSError: no space, no permission, or the file exists.
    """
    note = json.dumps([[use.operator, list(use.weights)] for use in uses])
    write_tensors(path, {name: tensors[name] for use in uses for name in use.weights}, note)


class WeightsFile(ExtentsFile):
    """Such a file of a torch model.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file, or was cut short.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._places, note = read_table(path, self._mapped)
        uses = [WeightUse(operator, tuple(names)) for operator, names in json.loads(note or "[]")]
        if [name for use in uses for name in use.weights] != list(self._places):
            raise ValueError(f"{path}: its note does not name the tensors in their order")
        self.uses = tuple(uses)
        begins = [self._places[use.weights[0]].begin for use in uses]
        ends = [*begins[1:], len(self._mapped)]
        self.extents = tuple(
            Extent(begin, end - begin) for begin, end in zip(begins, ends, strict=True)
        )
        self.weights_bytes = tuple(
            sum(self._places[name].nbytes for name in use.weights) for use in uses
        )

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
