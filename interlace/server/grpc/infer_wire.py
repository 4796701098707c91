"""ModelInfer messages by hand: where a request's tensors lie, and responses around bytes in place.

A generic protobuf parser would copy every tensor twice (out of the message, out of the parsed
object). Here the few top-level fields are walked, the tensors stay where they are, and what remains
(the "head": names, shapes, parameters) is parsed by the protobuf library once per distinct head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.proto.messages import ModelInferResponse
from interlace.server.limits import FIELDS_MAX, TENSORS_MAX

_ID_CHARS_MAX: Final = 4096
_MODEL_TAG: Final = 0x0A
_VERSION_TAG: Final = 0x12
ID_TAG: Final = 0x1A
RAW_TAG: Final = 0x3A
_OWN_TAGS: Final = frozenset((ID_TAG, RAW_TAG))
_OUT_ID: Final = b"\x1a"
_OUT_RAW: Final = b"\x32"
_ERROR_MESSAGE: Final = b"\x0a"
_INFER_RESPONSE: Final = b"\x12"
#: ``parameters { key: "triton_final_response" value { bool_param: ... } }`` of a response.
_FINAL_KEY: Final = b"triton_final_response"
_FINAL: Final = (
    b"\x22" + bytes((len(_FINAL_KEY) + 6, 0x0A, len(_FINAL_KEY))) + _FINAL_KEY + b"\x12\x02\x08"
)
FINAL_RESPONSE: Final = _FINAL + b"\x01"
MORE_RESPONSES: Final = _FINAL + b"\x00"
_PARAMETER_FIELDS: Final = {bool: "bool_param", int: "int64_param", str: "string_param"}


def malformed(detail: str) -> ServeError:
    return ServeError(Reason.BAD_INPUT, f"malformed ModelInferRequest: {detail}")


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The varint at ``at``, and the position after it.

    Raises:
        IndexError: the data ends inside.
        ServeError: longer than ten bytes.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise malformed(f"a number of more than ten bytes before byte {at}")


def varint(value: int) -> bytes:
    """A non-negative number as protobuf writes it."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def scan(message: bytes | memoryview) -> tuple[bytes, str, list[int]]:
    """The head of a request, its id, and its raw tensors as start, size, start, size, ...

    Raises:
        ServeError: BAD_INPUT, the message is not a protobuf.
    """
    raws: list[int] = []
    parts: list[bytes] = []
    call_id = ""
    at = kept = 0
    end = len(message)
    try:
        for _ in range(FIELDS_MAX):
            if at >= end:
                break
            start, tag = at, message[at]
            size = message[at + 1] if tag & 0x87 == 2 else -1
            if 0 <= size < 0x80:
                at += 2
            else:
                _, size, at = _long_field(message, at)
            at += size
            if tag in _OWN_TAGS:
                if kept < start:
                    parts.append(bytes(message[kept:start]))
                kept = at
                if tag == RAW_TAG:
                    raws += (at - size, size)
                else:
                    call_id = str(message[at - size : at], "utf-8")
    except IndexError as error:
        raise malformed(f"it ends inside a field, after {end} bytes") from error
    except UnicodeDecodeError as error:
        raise malformed("the id is not UTF-8") from error
    _check_end(at, end)
    if len(call_id) > _ID_CHARS_MAX:
        raise malformed(f"an id of {len(call_id)} characters, limit {_ID_CHARS_MAX}")
    if len(raws) > 2 * TENSORS_MAX:
        raise malformed(f"more than {TENSORS_MAX} tensors")
    if kept < end:
        parts.append(bytes(message[kept:end]))
    return (parts[0] if len(parts) == 1 else b"".join(parts)), call_id, raws


def addressee(message: bytes | memoryview) -> tuple[str, str]:
    """Return the name and the version of the model that a request is for; "" where it has none.

    Raises:
        ServeError: BAD_INPUT, it is not a protobuf, or names a model or a version twice: parsers
            differ in which one they take.
    """
    found: dict[int, str] = {}
    at, end = 0, len(message)
    try:
        for _ in range(FIELDS_MAX):
            if at >= end:
                break
            tag, size, at = _long_field(message, at)
            at += size
            if tag in (_MODEL_TAG, _VERSION_TAG) and at <= end:
                if tag in found:
                    raise malformed("it has model_name or model_version twice")
                found[tag] = str(message[at - size : at], "utf-8")
    except (IndexError, UnicodeDecodeError) as error:
        raise malformed(f"its model cannot be read ({error})") from error
    _check_end(at, end)
    return found.get(_MODEL_TAG, ""), found.get(_VERSION_TAG, "")


def _check_end(at: int, end: int) -> None:
    """Refuse a message of ``end`` bytes that was read up to ``at`` and does not end there."""
    if at > end:
        raise malformed(f"a field runs past its {end} bytes")
    if at < end:
        raise malformed(f"more than {FIELDS_MAX} fields")


def _long_field(message: bytes | memoryview, at: int) -> tuple[int, int, int]:
    """Return the tag of any field, and the size and the start of its contents."""
    start = at
    tag, at = read_varint(message, at)
    if at - start > 1 and not message[at - 1]:
        raise malformed(f"a tag with needless bytes before byte {at}")
    kind = tag & 7
    if kind == 2:
        return tag, *read_varint(message, at)
    if kind == 0:
        return tag, 0, read_varint(message, at)[1]
    if kind == 1:
        return tag, 8, at
    if kind == 5:
        return tag, 4, at
    raise malformed(f"wire type {kind} before byte {at}")


def response_parameters(json: str) -> bytes:
    """Parameters in JSON as fields of a ModelInferResponse."""
    if not json:
        return b""
    message = ModelInferResponse()
    for name, value in msgspec.json.decode(json).items():
        setattr(message.parameters[name], _PARAMETER_FIELDS[type(value)], value)
    data: bytes = message.SerializeToString()
    return data


def field(tag: bytes, data: bytes) -> bytes:
    """A length-delimited field."""
    return tag + varint(len(data)) + data


def response(
    head: bytes, call_id: str, outputs: Sequence[bytes | memoryview]
) -> tuple[list[bytes | memoryview], int]:
    """The pieces of a ModelInferResponse, the outputs by reference, and their size together."""
    if call_id:
        head += field(_OUT_ID, call_id.encode())
    parts: list[bytes | memoryview] = [head]
    nbytes = len(head)
    for output in outputs:
        size = len(output)
        tag = _OUT_RAW + varint(size)
        parts += (tag, output)
        nbytes += len(tag) + size
    return parts, nbytes


def stream_response(
    parts: list[bytes | memoryview], nbytes: int
) -> tuple[list[bytes | memoryview], int]:
    """The same inside a ModelStreamInferResponse."""
    tag = _INFER_RESPONSE + varint(nbytes)
    return [tag, *parts], len(tag) + nbytes


def stream_error(text: str, call_id: str) -> bytes:
    """A ModelStreamInferResponse that says what went wrong with which request."""
    inner = field(_OUT_ID, call_id.encode()) if call_id else b""
    return field(_ERROR_MESSAGE, text.encode()) + field(_INFER_RESPONSE, inner)
