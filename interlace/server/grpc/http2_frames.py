"""HTTP/2 frames as bytes: types, flags, error codes, and what a server sends (RFC 9113)."""

from __future__ import annotations

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME: Final = 16_384
MAX_WINDOW: Final = 2**31 - 1
#: What we let a client send ahead: one stream, and frames of at most this payload.
STREAM_WINDOW: Final = 16 << 20
FRAME_LIMIT: Final = 1 << 20

#: Length (16 high bits, 8 low bits), type, flags, stream.
HEAD: Final = struct.Struct(">HBBBI")
_HEAD4: Final = struct.Struct(">I")
_SETTING: Final = struct.Struct(">HI")


class PeerError(Exception):
    """A fault of the peer that ends the connection: the GOAWAY code and a text for its log."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One whole frame."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings(max_streams: int, max_header_bytes: int) -> bytes:
    """Our SETTINGS, and the window of the whole connection opened to its end."""
    pairs = (
        (MAX_CONCURRENT_STREAMS, max_streams),
        (INITIAL_WINDOW_SIZE, STREAM_WINDOW),
        (MAX_FRAME_SIZE, FRAME_LIMIT),
        (MAX_HEADER_LIST_SIZE, max_header_bytes),
    )
    payload = b"".join(_SETTING.pack(key, value) for key, value in pairs)
    return frame(SETTINGS, 0, 0, payload) + window_update(0, MAX_WINDOW - DEFAULT_WINDOW)


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _HEAD4.pack(increment))


def rst_stream(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, _HEAD4.pack(code))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream, code) + text.encode()[:256])


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The pairs of a SETTINGS payload, each within what RFC 9113 section 6.5.2 allows.

    Raises:
        PeerError: a length or value that it does not allow.
    """
    if len(payload) % 6:
        raise PeerError(FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    pairs: list[tuple[int, int]] = list(_SETTING.iter_unpack(payload))
    for key, value in pairs:
        if key == ENABLE_PUSH and value > 1:
            raise PeerError(PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH {value}")
        if key == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise PeerError(FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE {value}")
        if key == MAX_FRAME_SIZE and not DEFAULT_FRAME <= value <= (1 << 24) - 1:
            raise PeerError(PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE {value}")
    return pairs


def word(payload: bytes, kind: str) -> int:
    """The one 32-bit number of a RST_STREAM or WINDOW_UPDATE payload.

    Raises:
        PeerError: another length.
    """
    if len(payload) != 4:
        raise PeerError(FRAME_SIZE_ERROR, f"{kind} of {len(payload)} bytes")
    return int.from_bytes(payload, "big")


#: The head of a gRPC message: whether it is compressed, and its size.
PREFIX: Final = struct.Struct(">BI")


def literal(name: str, value: str) -> bytes:
    """A header field as a literal that is never indexed (RFC 7541, 6.2.2): it needs no state."""
    raw_name, raw_value = name.encode("ascii"), value.encode("ascii")
    return b"\x00" + _length(raw_name) + raw_name + _length(raw_value) + raw_value


def _length(raw: bytes) -> bytes:
    size = len(raw)
    if size < 127:
        return bytes((size,))
    out, size = bytearray((127,)), size - 127
    while size >= 128:
        out.append(size % 128 + 128)
        size //= 128
    out.append(size)
    return bytes(out)
