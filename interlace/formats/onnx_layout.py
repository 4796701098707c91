"""Rewrite the weights file beside an ONNX graph: in the order of execution, in whole pages.

onnxruntime writes pieces under a megabyte without gaps. Its kernels then read packed weights with
aligned instructions at unaligned addresses: the process dies. Also, weights are swapped by whole
pages. So the file is rewritten, and the offsets in the graph with it. Weights that no kernel reads,
since they were packed, come last. This module knows only a graph's path to its ``external_data``
(``proto/onnx_graph.proto``); everything else stays as it is.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from interlace.formats.runner import Extent, ExtentsFile, WeightUse

ALIGNMENT_BYTES: Final = mmap.PAGESIZE
_COPY_BYTES: Final = 1 << 20
#: ``KERNEL+HASH|OFFSET;LENGTH;...``, with one or more blobs after the kernel's key.
_PACKED: Final = re.compile(r"([^|]*)((?:\|\d+;\d+;\d+)+)")


class StoredPiece(NamedTuple):
    """A run of the weights file: the weight or packed weight that ``node`` reads first.

    ``node`` counts nodes of the graph, ``operator`` is its kind; -1 if none reads it.
    """

    node: int
    operator: str
    weight: str
    begin: int
    nbytes: int


def lay_out(graph: Path, weights: Path) -> list[StoredPiece]:
    """Rewrite both files in place; the pieces of weights as they lie then, whole pages each.

    Raises:
        ValueError: the graph refers to its weights in a way this does not know.
        OSError: no space or no permission.
    """
    from interlace.proto.messages import OnnxModel  # whoever opens what was laid out needs none

    model = OnnxModel.FromString(graph.read_bytes())
    ordered = _in_order(model.graph)
    aside = weights.with_suffix(".aligned")
    places: dict[int, int] = {}
    with weights.open("rb") as source, aside.open("wb") as target:
        for piece in ordered:
            places[piece.begin] = target.tell()
            source.seek(piece.begin)
            _copy(source, target, piece.nbytes)
            target.write(b"\0" * (-target.tell() % ALIGNMENT_BYTES))
    aside.replace(weights)
    for tensor in _stored(model.graph):
        _move(tensor, places)
    graph.write_bytes(model.SerializeToString())
    return [
        piece._replace(
            begin=places[piece.begin], nbytes=-(-piece.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        )
        for piece in ordered
    ]


def _in_order(graph: Any) -> list[StoredPiece]:
    """Sort pieces by the first node that reads them; packed before plain ones of the same weight.

    Plain weights that were packed come last: kernels read the packed ones.
    """
    readers: dict[str, tuple[int, str]] = {}
    for number, node in enumerate(graph.node):
        for name in _read_by(node):
            readers.setdefault(name, (number, node.op_type))
    pieces: dict[int, StoredPiece] = {}
    plain: set[int] = set()
    for tensor in _stored(graph):
        node, operator = readers.get(tensor.name, (-1, ""))
        runs = _runs(tensor)
        if len(runs) > 1:
            plain.add(runs[0][0])
        for offset, length in runs:
            known = pieces.get(offset)
            if known is None or known.nbytes < length:
                pieces[offset] = StoredPiece(node, operator, tensor.name, offset, length)

    def order(piece: StoredPiece) -> tuple[bool, bool, int, int]:
        return piece.begin in plain, piece.node < 0, piece.node, piece.begin

    return sorted((piece for piece in pieces.values() if piece.nbytes), key=order)


def _subgraphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs)


def _read_by(node: Any) -> Iterator[str]:
    """The values that a node reads, those that its subgraphs do included."""
    yield from node.input
    for graph in _subgraphs(node):
        for inner in graph.node:
            yield from _read_by(inner)


def _stored(graph: Any) -> Iterator[Any]:
    """The tensors that lie in the weights file, those of subgraphs included."""
    for node in graph.node:
        for inner in _subgraphs(node):
            yield from _stored(inner)
    for tensor in graph.initializer:
        if any(entry.key == "offset" for entry in tensor.external_data):
            yield tensor


def _runs(tensor: Any) -> list[tuple[int, int]]:
    """Offset and length of each run: the plain weight, then what kernels packed."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    runs = [(int(told["offset"]), int(told.get("length", 0)))]
    for key, value in told.items():
        if key.startswith("prepacked"):
            runs += [(int(offset), int(length)) for offset, length, _ in _packed(value)[1]]
    return runs


def _move(tensor: Any, places: Mapping[int, int]) -> None:
    for entry in tensor.external_data:
        if entry.key == "offset":
            entry.value = str(places[int(entry.value)])
        elif entry.key.startswith("prepacked"):
            kernel, blobs = _packed(entry.value)
            moved = [f"{places[int(begin)]};{length};{rest}" for begin, length, rest in blobs]
            entry.value = "|".join([kernel, *moved])


def _packed(value: str) -> tuple[str, list[list[str]]]:
    match = _PACKED.fullmatch(value)
    if match is None:
        raise ValueError(f"packed weights described as {value!r}")
    return match.group(1), [blob.split(";") for blob in match.group(2)[1:].split("|")]


def _copy(source: BinaryIO, target: BinaryIO, length: int) -> None:
    left = length
    while left > 0:
        block = source.read(min(left, _COPY_BYTES))
        if not block:
            raise ValueError(f"the weights end {left} bytes early")
        target.write(block)
        left -= len(block)


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
