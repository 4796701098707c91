"""Tensor data as JSON: nested or flat, to little-endian bytes and back."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import chain
from typing import Any, Final, Literal, TypeVar

import msgspec
import numpy as np

from interlace.core.errors import bad_input
from interlace.core.tensor import BYTES, element_count, frame, unframe
from interlace.formats.arrays import NUMPY_TYPES

DEPTH_MAX: Final = 16
#: The numbers of data from this size on are counted, by their commas, before they are decoded.
COUNT_FIRST_BYTES: Final = 4096
#: What decoding JSON from strangers raises; the last for arrays in arrays in arrays.
MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
BINARY_ONLY: Final = ("FP16", "BF16")
#: What JSON has no numbers for; Triton and its clients write them as such.
_NonFinite = Literal["NaN", "Infinity", "-Infinity"]
#: A string, closed or not, or one of those.
_STRING_OR_NON_FINITE: Final = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*"?|-?(?:NaN|Infinity)', re.DOTALL
)
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
Decoded = TypeVar("Decoded")


def decoded(decoder: msgspec.json.Decoder[Decoded], body: bytes | memoryview) -> Decoded:
    """What a decoder makes of JSON in which NaN, Infinity and -Infinity may stand for numbers.

    They are decoded as strings, which ``to_bytes`` takes for numbers of floating point.

    Raises:
        msgspec.DecodeError: it is not JSON all the same, or not of the decoder's type.
    """
    try:
        return decoder.decode(body)
    except msgspec.DecodeError:
        text = bytes(body)
        if b"NaN" not in text and b"Infinity" not in text:
            raise
    try:
        return decoder.decode(_STRING_OR_NON_FINITE.sub(_as_string, text))
    except msgspec.DecodeError as error:
        told = _BYTE.sub(lambda found: f"(byte {_as_sent(text, int(found[1]))})", str(error))
        raise type(error)(told) from None


def _as_sent(text: bytes, place: int) -> int:
    """Where that byte lay before quotes were put around what is no number."""
    added = 0
    for found in _STRING_OR_NON_FINITE.finditer(text):
        if found.start() + added >= place:
            break
        added += 0 if found[0].startswith(b'"') else 2
    return place - added


def _as_string(found: re.Match[bytes]) -> bytes:
    text = found[0]
    return text if text.startswith(b'"') else b'"' + text + b'"'


def to_bytes(name: str, datatype: str, shape: tuple[int, ...], data: bytes) -> bytes:
    """The bytes of an input given as a JSON array.

    Raises:
        ServeError: BAD_INPUT for the wrong kind, range or number of values.
    """
    if datatype in BINARY_ONLY:
        raise bad_input(f"input '{name}': {datatype} has no JSON form; send it as binary data")
    expected = element_count(shape)
    if datatype != BYTES and expected and len(data) > COUNT_FIRST_BYTES:
        _check_count(name, shape, data.count(b",") + 1)
    values = _values(name, datatype, data)
    _check_count(name, shape, len(values))
    if datatype == BYTES:
        return frame([value.encode() for value in values])
    if datatype == "BOOL" and not set(values) <= {0, 1}:
        raise bad_input(f"input '{name}': BOOL takes true, false, 0 and 1")
    return _packed(name, datatype, values)


def to_json(name: str, datatype: str, view: memoryview) -> bytes:
    """A flat JSON array of a tensor's elements. NaN and infinities are written as such.

    Raises:
        ServeError: BAD_INPUT where JSON cannot carry them.
    """
    if datatype in BINARY_ONLY:
        raise bad_input(f"output '{name}': {datatype} has no JSON form; ask for binary data")
    if datatype == BYTES:
        return _texts_to_json(name, unframe(view))
    array = np.frombuffer(view, NUMPY_TYPES[datatype])
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return json.dumps(array.tolist(), separators=(",", ":")).encode()
    return msgspec.json.encode(array.tolist())


def _check_count(name: str, shape: tuple[int, ...], count: int) -> None:
    expected = element_count(shape)
    if count != expected:
        raise bad_input(
            f"input '{name}' of shape {list(shape)} needs {expected} values in 'data', got {count}"
        )


def _values(name: str, datatype: str, data: bytes) -> list[Any]:
    depth = _depth(data)
    if not depth:
        raise bad_input(f"input '{name}': 'data' must be an array")
    if depth > DEPTH_MAX:
        raise bad_input(f"input '{name}': 'data' is nested deeper than {DEPTH_MAX}")
    try:
        kind = _kind(datatype)
        if kind is float and (b"NaN" in data or b"Infinity" in data):
            values = decoded(_decoder(float | _NonFinite, depth), data)
        else:
            values = _decoder(kind, depth).decode(data)
    except MALFORMED as error:
        raise bad_input(f"input '{name}' ({datatype}): 'data': {error}") from error
    for _ in range(depth - 1):
        if len({len(row) for row in values}) > 1:
            raise bad_input(f"input '{name}': 'data' has rows of different lengths")
        values = list(chain.from_iterable(values))
    return values


def _packed(name: str, datatype: str, values: list[Any]) -> bytes:
    try:
        with np.errstate(over="raise"):
            return np.array(values, NUMPY_TYPES[datatype]).tobytes()
    except (OverflowError, FloatingPointError) as error:
        raise bad_input(
            f"input '{name}': a value in 'data' does not fit {datatype}: {error}"
        ) from error


def _depth(data: bytes) -> int:
    start = data[:256].translate(None, b" \t\r\n")
    return len(start) - len(start.lstrip(b"["))


def _kind(datatype: str) -> type:
    if datatype == BYTES:
        return str
    if datatype == "BOOL":
        return bool
    return float if datatype.startswith("FP") else int


@cache
def _decoder(kind: Any, depth: int) -> msgspec.json.Decoder[list[Any]]:
    nested: Any = bool | int if kind is bool else kind
    for _ in range(depth):
        nested = list[nested]
    return msgspec.json.Decoder(nested)


def _texts_to_json(name: str, elements: list[bytes]) -> bytes:
    try:
        return msgspec.json.encode([element.decode() for element in elements])
    except UnicodeDecodeError as error:
        raise bad_input(
            f"output '{name}' holds BYTES that are not UTF-8; ask for binary data"
        ) from error
