"""A node that says it serves models, and does with a request what its model is named for."""

import json
import re
import socket
import struct
import threading
from contextlib import suppress
from typing import Final

from bench.attack.http2 import frame

SLO_MS: Final = 80.0
SILENT: Final = "liar-silent"
#: What it answers over HTTP; a second later it closes.
REPLIES: Final[dict[str, bytes]] = {
    f"liar-http-{number}": b"HTTP/1.1 " + reply
    for number, reply in enumerate(
        [
            b"200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nyes",
            b"200 OK\r\nContent-Length: +3\r\n\r\nyes",
            b"200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nyes",
            b"200 OK\r\nContent-Length: 3\r\nX: a\nSet-Cookie: b\r\n\r\nyes",
            b"200 OK\r\nContent-Length: 3\r\nX: a\rY: b\r\n\r\nyes",
            b"200 OK\r\nContent-Length: 3\r\nX: \0\r\n\r\nyes",
            b"200 OK\r\nContent-Length: 3\r\n folded: yes\r\n\r\nyes",
            b"204 No Content\r\nContent-Length: 3\r\n\r\nyes",
            b"100 Continue\r\nContent-Length: 3\r\n\r\nyes",
            b"200 OK\r\nContent-Length: 9\r\n\r\nhalf",
            b"200 OK\r\nContent-Length: 600000000\r\n\r\nfew",
            b"200 OK\r\n" + b"X: y\r\n" * 30_000 + b"\r\n",
        ]
    )
}
#: Trailers of its calls, and what comes before them.
ENDS: Final[dict[str, tuple[dict[bytes, bytes], bytes]]] = {
    f"liar-grpc-{number}": end
    for number, end in enumerate(
        [
            ({b"grpc-status": b"99"}, b""),
            ({b"grpc-status": b"-1"}, b""),
            ({b"grpc-status": b"x"}, b""),
            ({b"grpc-status": b"8", b"retry-after-ms": b"inf"}, b""),
            ({b"grpc-status": b"8", b"retry-after-ms": b"nan"}, b""),
            ({}, b""),
            ({b"grpc-status": b"0"}, b""),
            ({b"grpc-status": b"0"}, b"\0\0\0\0"),
            ({b"grpc-status": b"0"}, b"\1\0\0\0\1x"),
            ({b"grpc-status": b"0"}, b"\0\0\0\0\1xy"),
        ]
    )
}
MODELS: Final = (SILENT, *REPLIES, *ENDS)
_NAME: Final = re.compile(rb"liar-[a-z]+(?:-\d+)?")
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4


class LyingNode:
    """HTTP at ``port``, gRPC at the one after it."""

    def __init__(self) -> None:
        self.port = adjacent_ports()
        self._listeners = [
            socket.create_server(("127.0.0.1", self.port + number)) for number in (0, 1)
        ]
        for listener, serve in zip(self._listeners, (_serve_http, _serve_grpc), strict=True):
            threading.Thread(target=_accept, args=(listener, serve), daemon=True).start()

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()


def adjacent_ports() -> int:
    """Return a free port that is followed by a free one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            with suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", port + 1)):
                return port


def _accept(listener: socket.socket, serve: object) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()  # type: ignore[arg-type]


def _serve_http(connection: socket.socket) -> None:
    number = 0
    with connection, connection.makefile("rb") as stream, suppress(OSError):
        while line := stream.readline():
            length = 0
            while (field := stream.readline()).strip():
                name, _, value = field.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            stream.read(length)
            found = _NAME.search(line)
            if found is None:
                number += 1
                state = _state(number)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(state))
                connection.sendall(state)
            elif reply := REPLIES.get(found[0].decode()):
                connection.sendall(reply)
                connection.settimeout(1.0)


def _state(number: int) -> bytes:
    outlook = {"wait_ms": 0.1, "alone_ms": 0.1, "row_ms": 0.0, "slo_ms": SLO_MS}
    said = {"began": 1, "number": number, "models": dict.fromkeys(MODELS, outlook)}
    return json.dumps(said).encode()


def _serve_grpc(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as stream, suppress(OSError):
        stream.read(24)
        connection.sendall(frame(_SETTINGS, 0, 0))
        while head := stream.read(9):
            size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            (number,) = struct.unpack(">I", head[5:])
            data = stream.read(size)
            found = _NAME.search(data) if kind == _DATA and flags & _END_STREAM else None
            if found is not None and (end := ENDS.get(found[0].decode())):
                connection.sendall(_answer(number, *end))


def _answer(number: int, trailers: dict[bytes, bytes], data: bytes) -> bytes:
    last = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in trailers.items()
    )
    head = frame(_HEADERS, _END_HEADERS, number, b"\x88")
    body = frame(_DATA, 0, number, data) if data else b""
    return head + body + frame(_HEADERS, _END_HEADERS | _END_STREAM, number, last)
