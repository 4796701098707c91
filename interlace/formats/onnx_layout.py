"""The weights file beside an ONNX graph laid out anew, in the order of execution, by whole pages.

onnxruntime writes pieces under a megabyte one after the other, and its kernels then read packed
weights with aligned instructions from wherever they were mapped: the process dies. And pages are
what a session's weights come and go by. So the file is rewritten, and the offsets in the graph with
it; what no kernel reads, since it was packed, comes last. A graph is protobuf; only the handful of
fields on the way to ``external_data`` are looked into, everything else is copied as it stands.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

ALIGNMENT_BYTES: Final = mmap.PAGESIZE
_COPY_BYTES: Final = 1 << 20

#: Message and field number to the message inside: how external data is reached.
_INSIDE: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
    "tensor": {13: "entry"},
    "entry": {},
}
_KEY, _VALUE = 1, 2
_GRAPH, _NODE = 7, 1  # of a model, of a graph
_NODE_INPUT, _OPERATOR, _ATTRIBUTE = 1, 4, 5  # of a node
_SUBGRAPHS: Final = (6, 11)  # of an attribute
_TENSOR_NAME, _EXTERNAL = 8, 13  # of a tensor
#: ``KERNEL+HASH|OFFSET;LENGTH;...``, with one or more blobs after the kernel's key.
_PACKED: Final = re.compile(r"([^|]*)((?:\|\d+;\d+;\d+)+)")

Move = Callable[[int, int], int]


class _ProtoField(NamedTuple):
    number: int
    raw: bytes  #: tag, length and content
    content: bytes | None  #: of a length-delimited field


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
    message = graph.read_bytes()
    ordered = _in_order(message)
    aside = weights.with_suffix(".aligned")
    places: dict[int, int] = {}
    with weights.open("rb") as source, aside.open("wb") as target:
        for piece in ordered:
            places[piece.begin] = target.tell()
            source.seek(piece.begin)
            _copy(source, target, piece.nbytes)
            target.write(b"\0" * (-target.tell() % ALIGNMENT_BYTES))
    aside.replace(weights)
    graph.write_bytes(_edit("model", message, lambda offset, length: places[offset]))
    return [
        piece._replace(
            begin=places[piece.begin], nbytes=-(-piece.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        )
        for piece in ordered
    ]


def _in_order(message: bytes) -> list[StoredPiece]:
    """All pieces, by the first node that reads them; packed before plain ones of the same weight.

    Plain weights of which there are packed ones come last: kernels read those.
    """
    readers = _first_readers(message)
    pieces: dict[int, StoredPiece] = {}
    plain: set[int] = set()
    for name, runs in _weights("model", message):
        node, operator = readers.get(name, (-1, ""))
        if len(runs) > 1:
            plain.add(runs[0][0])
        for offset, length in runs:
            known = pieces.get(offset)
            if known is None or known.nbytes < length:
                pieces[offset] = StoredPiece(node, operator, name, offset, length)

    def order(piece: StoredPiece) -> tuple[bool, bool, int, int]:
        return piece.begin in plain, piece.node < 0, piece.node, piece.begin

    return sorted((piece for piece in pieces.values() if piece.nbytes), key=order)


def _first_readers(message: bytes) -> dict[str, tuple[int, str]]:
    """Of each value that a node reads, the first such node of the graph, and its kind."""
    found: dict[str, tuple[int, str]] = {}
    for graph in _contents(message, _GRAPH):
        for number, node in enumerate(_contents(graph, _NODE)):
            operator = next((one.decode() for one in _contents(node, _OPERATOR)), "")
            for name in _read_by(node):
                found.setdefault(name, (number, operator))
    return found


def _read_by(node: bytes) -> Iterator[str]:
    """The values that a node reads, those that its subgraphs do included."""
    for name in _contents(node, _NODE_INPUT):
        yield name.decode()
    for attribute in _contents(node, _ATTRIBUTE):
        for number in _SUBGRAPHS:
            for graph in _contents(attribute, number):
                for inner in _contents(graph, _NODE):
                    yield from _read_by(inner)


def _weights(kind: str, message: bytes) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Name, and offset and length of each run: the plain weight, then what kernels packed."""
    if kind != "tensor":
        for field in _fields(message):
            inner = _INSIDE[kind].get(field.number)
            if inner is not None and field.content is not None:
                yield from _weights(inner, field.content)
        return
    entries = [_entry(content) for content in _contents(message, _EXTERNAL)]
    told = dict(entries)
    if "offset" not in told:
        return
    runs = [(int(told["offset"]), int(told.get("length", 0)))]
    for key, value in entries:
        if key.startswith("prepacked"):
            runs += [(int(one[0]), int(one[1])) for one in _packed(value)[1]]
    yield next((name.decode() for name in _contents(message, _TENSOR_NAME)), ""), runs


def _contents(message: bytes, number: int) -> Iterator[bytes]:
    for field in _fields(message):
        if field.number == number and field.content is not None:
            yield field.content


def _copy(source: BinaryIO, target: BinaryIO, length: int) -> None:
    left = length
    while left > 0:
        block = source.read(min(left, _COPY_BYTES))
        if not block:
            raise ValueError(f"the weights end {left} bytes early")
        target.write(block)
        left -= len(block)


def _edit(kind: str, message: bytes, move: Move) -> bytes:
    if kind == "tensor":
        return _edit_tensor(message, move)
    out = bytearray()
    for field in _fields(message):
        inner = _INSIDE[kind].get(field.number)
        if inner is None or field.content is None:
            out += field.raw
        else:
            out += _delimited(field.number, _edit(inner, field.content, move))
    return bytes(out)


def _edit_tensor(message: bytes, move: Move) -> bytes:
    entries = [
        _entry(field.content or b"") for field in _fields(message) if field.number == _EXTERNAL
    ]
    length = int(dict(entries).get("length", 0))
    out = bytearray()
    for field in _fields(message):
        if field.number != _EXTERNAL:
            out += field.raw
            continue
        key, value = _entry(field.content or b"")
        if key == "offset":
            value = str(move(int(value), length))
        elif key.startswith("prepacked"):
            value = _move_packed(value, move)
        entry = _delimited(_KEY, key.encode()) + _delimited(_VALUE, value.encode())
        out += _delimited(_EXTERNAL, entry)
    return bytes(out)


def _move_packed(value: str, move: Move) -> str:
    kernel, blobs = _packed(value)
    moved = [f"{move(int(offset), int(length))};{length};{rest}" for offset, length, rest in blobs]
    return "|".join([kernel, *moved])


def _packed(value: str) -> tuple[str, list[list[str]]]:
    match = _PACKED.fullmatch(value)
    if match is None:
        raise ValueError(f"packed weights described as {value!r}")
    return match.group(1), [blob.split(";") for blob in match.group(2)[1:].split("|")]


def _entry(message: bytes) -> tuple[str, str]:
    parts = {field.number: (field.content or b"").decode() for field in _fields(message)}
    return parts.get(_KEY, ""), parts.get(_VALUE, "")


def _fields(message: bytes) -> Iterator[_ProtoField]:
    place = 0
    while place < len(message):
        start = place
        tag, place = _varint(message, place)
        content = None
        match tag & 7:
            case 0:
                _, place = _varint(message, place)
            case 2:
                length, place = _varint(message, place)
                content = message[place : place + length]
                place += length
            case 1:
                place += 8
            case 5:
                place += 4
            case other:
                raise ValueError(f"protobuf wire type {other}")
        yield _ProtoField(tag >> 3, message[start:place], content)


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _delimited(number: int, content: bytes) -> bytes:
    return _number((number << 3) | 2) + _number(len(content)) + content


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*out, value])
