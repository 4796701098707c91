"""A request as the load generator sends it: bytes, ready for the socket."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from interlace.server.grpc.http2_frames import PREFIX, literal


@dataclass(frozen=True, slots=True)
class Call:
    """One call: HTTP/1.1 POST (``proto`` "http") or a unary gRPC call ("grpc")."""

    proto: str
    port: int
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class EncodedCall:
    """A call as it goes out; ``head`` is the HPACK block of a gRPC call, empty for HTTP."""

    proto: str
    port: int
    payload: bytes
    head: bytes = b""
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None


def pack(call: Call) -> EncodedCall:
    """The bytes of a call."""
    if call.proto == "http":
        lines = "".join(f"{key}: {value}\r\n" for key, value in call.headers.items())
        head = (
            f"POST {call.path} HTTP/1.1\r\nHost: {call.host}:{call.port}\r\n{lines}"
            f"Content-Length: {len(call.body)}\r\n\r\n"
        )
        return EncodedCall("http", call.port, head.encode() + call.body, b"", call.host, call.tls)
    message = PREFIX.pack(0, len(call.body)) + call.body
    pairs = {
        ":method": "POST", ":scheme": "http", ":path": call.path, ":authority": call.host,
        "te": "trailers", "content-type": "application/grpc", "user-agent": "load", **call.headers,
    }  # fmt: skip
    block = b"".join(literal(name, value) for name, value in pairs.items())
    return EncodedCall("grpc", call.port, message, block, call.host, call.tls)
