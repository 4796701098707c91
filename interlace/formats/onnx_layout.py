"""The weights file beside an ONNX graph laid out anew, every piece on a 64-byte boundary.

onnxruntime writes pieces under a megabyte one after the other, and its kernels then read packed
weights with aligned instructions from wherever they were mapped: the process dies. So the file is
rewritten, and the offsets in the graph with it. A graph is protobuf; only the handful of fields
on the way to ``external_data`` are looked into, everything else is copied as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

ALIGNMENT_BYTES: Final = 64
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
#: ``KERNEL+HASH|OFFSET;LENGTH;...``, with one or more blobs after the kernel's key.
_PACKED: Final = re.compile(r"([^|]*)((?:\|\d+;\d+;\d+)+)")

Move = Callable[[int, int], int]


class _ProtoField(NamedTuple):
    number: int
    raw: bytes  #: tag, length and content
    content: bytes | None  #: of a length-delimited field


def align_weights(graph: Path, weights: Path) -> None:
    """Rewrite both files in place.

    Raises:
        ValueError: the graph refers to its weights in a way this does not know.
        OSError: no space or no permission.
    """
    message = graph.read_bytes()
    pieces: dict[int, int] = {}

    def note(offset: int, length: int) -> int:
        pieces[offset] = max(length, pieces.get(offset, 0))
        return offset

    _edit("model", message, note)
    aside = weights.with_suffix(".aligned")
    places: dict[int, int] = {}
    with weights.open("rb") as source, aside.open("wb") as target:
        for offset, length in sorted(pieces.items()):
            target.write(b"\0" * (-target.tell() % ALIGNMENT_BYTES))
            places[offset] = target.tell()
            source.seek(offset)
            _copy(source, target, length)
    aside.replace(weights)
    graph.write_bytes(_edit("model", message, lambda offset, length: places[offset]))


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
    entries = [_entry(field.content or b"") for field in _fields(message) if field.number == 13]
    length = int(dict(entries).get("length", 0))
    out = bytearray()
    for field in _fields(message):
        if field.number != 13:
            out += field.raw
            continue
        key, value = _entry(field.content or b"")
        if key == "offset":
            value = str(move(int(value), length))
        elif key.startswith("prepacked"):
            value = _move_packed(value, move)
        entry = _delimited(_KEY, key.encode()) + _delimited(_VALUE, value.encode())
        out += _delimited(13, entry)
    return bytes(out)


def _move_packed(value: str, move: Move) -> str:
    match = _PACKED.fullmatch(value)
    if match is None:
        raise ValueError(f"packed weights described as {value!r}")
    moved = [match.group(1)]
    for blob in match.group(2)[1:].split("|"):
        offset, length, rest = blob.split(";")
        moved.append(f"{move(int(offset), int(length))};{length};{rest}")
    return "|".join(moved)


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
