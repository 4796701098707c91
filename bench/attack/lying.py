"""Peers of a fleet that change what honest ones say: a node, and a controller."""

import json
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Final

import msgspec

from bench.peers import once


def adjacent_ports() -> int:
    """Return a free port that is followed by a free one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            with suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", port + 1)):
                return port


_MARK: Final = "interlace-odd-value"
#: What stands in the place of a true value, as JSON text.
ODD: Final = (
    "-1", "0", "9" * 4300, "1e308", "-1e308", "NaN", "Infinity", str(2**63), "1.5", "true", "null",
    "[]", "{}", '""', '".."', '"../../../tmp/x"', '"a\\r\\nX-Odd: b"', '"a\\u0000b"', '"\\ud800"',
    '"' + "n" * 70_000 + '"', "[" * 3000 + "]" * 3000, '"\\u001b[2J"',
)  # fmt: skip
#: How a reply comes, besides whole.
_WAYS: Final = ("whole", "whole", "whole", "half", "silent", "drips", "endless", "junk")
#: Asked once of a node that begins: all of it is used to say something odd.
_SELDOM: Final = ("/v2/node", "/v2/node/models")
#: After so many questions.
_BEGINS_ANEW: Final = 10
_DIGEST: Final = "0" * 64
#: What a controller says that its models are.
LISTS: Final[tuple[bytes, ...]] = (
    b"", b"null", b"[1", b"[" * 100_000, b"\xff" * 1000, b'{"a": {"digest": "x", "files": {}}}',
    *(
        json.dumps({name: {"digest": _DIGEST, "files": {path: [size, digest]}}}).encode()
        for name, path, size, digest in (
            ("a", "../../../../odd-file", 4, _DIGEST),
            ("a", "/tmp/odd-file", 4, _DIGEST),
            ("a", "1/a\0b", 4, _DIGEST),
            ("a", "1/w.data", 4, "\u00fc"),
            ("a", "1/w.data", -1, _DIGEST),
            ("a", "1/w.data", 1 << 62, _DIGEST),
            ("a", "1/w.data", 64 << 20, _DIGEST),
            ("..", "1/w.data", 4, _DIGEST),
            ("a\r\nb", "1/w.data", 4, _DIGEST),
            ("n" * 5000, "1/w.data", 4, _DIGEST),
        )
    ),
)  # fmt: skip


class LyingPeer:
    """HTTP at ``port``; ``answer`` gives the body of a path, sent in one of ``_WAYS``.

    It breaks off as long as it does not lie yet, and whatever it is to infer.
    """

    def __init__(self, answer: Callable[[str, random.Random], bytes], seed: int) -> None:
        peer = self
        self.asked = 0
        self.lies = True
        self.random = random.Random(seed)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                peer.asked += 1
                length = int(self.headers.get("Content-Length", 0))
                self.rfile.read(length)
                if not peer.lies or self.path.endswith("/infer"):
                    self.close_connection = True
                    return
                way = "whole" if self.path in _SELDOM else peer.random.choice(_WAYS)
                _send_reply(self, answer(self.path, peer.random), way)

            do_POST = do_GET

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def lying_node(honest_port: int, seed: int) -> LyingPeer:
    """A node that says what an honest one does, but for one value a reply."""

    asked = count()

    def answer(path: str, random_: random.Random) -> bytes:
        if path == "/v2/node/assignment":
            return b"null"
        _, true = once.get(honest_port, path)
        packed = path == "/v2/node/models"
        said = msgspec.msgpack.decode(true) if packed else json.loads(true)
        if path in ("/v2/node", "/v2/node/state") and isinstance(said, dict):
            # Else it is the honest one, named twice; who begins anew is asked what it is.
            said["began"] = said.get("began", 0) + 1 + next(asked) // _BEGINS_ANEW
        if path not in _SELDOM and random_.random() < 0.5:
            return msgspec.msgpack.encode(said) if packed else json.dumps(said).encode()
        _replace(said, random_)
        odd = random_.choice(ODD)
        if not packed:
            return json.dumps(said).replace(f'"{_MARK}"', odd).encode()
        return msgspec.msgpack.encode(said).replace(b"\xb3" + _MARK.encode(), _packed(odd))

    return LyingPeer(answer, seed)


def lying_controller(seed: int) -> LyingPeer:
    """A controller whose models are none, and whose files are other bytes."""

    def answer(path: str, random_: random.Random) -> bytes:
        if path == "/v2/fleet/models":
            return random_.choice(LISTS)
        return random_.randbytes(random_.choice((0, 3, 4 << 20, 5 << 20)))

    return LyingPeer(answer, seed)


def _replace(said: Any, random_: random.Random) -> None:
    """Put the mark where one value was, at any depth."""
    while True:
        keys = list(said) if isinstance(said, dict) else list(range(len(said)))
        if not keys:
            return
        key = random_.choice(keys)
        inner = said[key]
        if not isinstance(inner, dict | list) or not inner or random_.random() < 0.2:
            said[key] = _MARK
            return
        said = inner


def _packed(odd: str) -> bytes:
    try:
        return msgspec.msgpack.encode(json.loads(odd))
    except (ValueError, OverflowError, RecursionError):
        return b"\xc1"  # never used in MessagePack


def _send_reply(handler: BaseHTTPRequestHandler, body: bytes, way: str) -> None:
    out = handler.wfile
    handler.close_connection = True
    try:
        if way == "silent":
            time.sleep(5.0)
            return
        if way == "junk":
            out.write(b"\0\xff" * 500)
            return
        length = 1 << 40 if way == "endless" else len(body)
        out.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length)
        if way == "whole":
            out.write(body)
        elif way == "half":
            out.write(body[: len(body) // 2])
        ends_s = time.monotonic() + 5.0
        while way in ("drips", "endless") and time.monotonic() < ends_s:
            out.write(b"[" if way == "drips" else b"[" * (1 << 20))
            time.sleep(0.2 if way == "drips" else 0.0)
    except OSError:
        pass  # it was cut off, as it should be
