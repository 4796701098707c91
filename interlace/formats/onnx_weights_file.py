"""The weights file beside an ONNX graph, and which of its bytes which nodes read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from interlace.formats.extents_file import Extent, ExtentsFile, WeightUse
from interlace.formats.onnx_layout import StoredPiece

GRAPH: Final = "model.onnx"
WEIGHTS: Final = "weights.bin"
USES: Final = "uses.json"
#: Weights smaller than this come together with those before them: each piece costs a system call.
_LEAST_BYTES: Final = 1 << 16


class _NodeWeights(msgspec.Struct, array_like=True):
    """Weights that come together, and the first node that reads some of them."""

    node: int
    operator: str
    weights: list[str]
    begin: int
    nbytes: int


class _Uses(msgspec.Struct):
    """All of them, and the size of the whole file."""

    file_bytes: int
    uses: list[_NodeWeights]


class OnnxWeightsFile(ExtentsFile):
    """The weights of an optimised model's folder; ``nodes`` are the first readers of its uses.

    Raises:
        OSError: it cannot be opened.
        ValueError: its list of uses is not one, or it was cut short.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / WEIGHTS)
        written = msgspec.json.decode((folder / USES).read_bytes(), type=_Uses)
        if self.nbytes != written.file_bytes:
            raise ValueError(f"{self.path}: {self.nbytes} bytes, not {written.file_bytes}")
        told = written.uses
        self.uses = tuple(WeightUse(one.operator, tuple(one.weights)) for one in told)
        self.extents = tuple(Extent(one.begin, one.nbytes) for one in told)
        self.weights_bytes = tuple(one.nbytes for one in told)
        self.nodes = tuple(one.node for one in told)


def write_uses(folder: Path, pieces: Iterable[StoredPiece], kept: Iterable[Extent]) -> None:
    """Write down what a session on this folder reads of its weights: what it has ``kept`` mapped.

    Raises:
        OSError: no space or no permission.
    """
    runs = [(one.begin, one.begin + one.nbytes) for one in kept]
    uses: list[_NodeWeights] = []
    for node, operator, weight, begin, nbytes in pieces:
        if not any(first <= begin and begin + nbytes <= end for first, end in runs):
            continue
        last = uses[-1] if uses else None
        if last and last.nbytes < _LEAST_BYTES and last.begin + last.nbytes == begin:
            last.weights.append(weight)
            last.nbytes += nbytes
        else:
            uses.append(_NodeWeights(node, operator, [weight], begin, nbytes))
    found = _Uses((folder / WEIGHTS).stat().st_size, uses)
    (folder / USES).write_bytes(msgspec.json.encode(found))
