"""A node that does as it is told with each request: answers, refuses, hangs up, or says nothing."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from interlace.server.grpc import http2_frames as h2
from interlace.server.grpc.http2_frames import literal

#: What it does with one connection's next request; true to go on with the connection.
Act = Callable[[socket.socket, bytes], bool]


def answers(status: int, body: bytes, *headers: str) -> Act:
    def act(connection: socket.socket, head: bytes) -> bool:
        lines = "".join(f"{line}\r\n" for line in headers)
        start = f"HTTP/1.1 {status} X\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        connection.sendall(start.encode() + body)
        return True

    return act


def answers_after(event: threading.Event, body: bytes) -> Act:
    def act(connection: socket.socket, head: bytes) -> bool:
        event.wait(10)
        return answers(200, body)(connection, head)

    return act


def hangs_up(connection: socket.socket, head: bytes) -> bool:
    return False


def silent(connection: socket.socket, head: bytes) -> bool:
    """Say nothing until the other side is gone."""
    return bool(connection.recv(1))


def says(*parts: bytes) -> Act:
    """Send that and hang up; parts arrive one after another."""

    def act(connection: socket.socket, head: bytes) -> bool:
        for index, part in enumerate(parts):
            time.sleep(0.05 * bool(index))
            connection.sendall(part)
        return False

    return act


class _Listening:
    """Serves each connection in a thread of its own."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        raise NotImplementedError


class ScriptedNode(_Listening):
    """Takes its acts in turn, the last one for ever; ``heads`` and ``bodies`` are what it got."""

    def __init__(self, acts: Sequence[Act]) -> None:
        self._acts = list(acts)
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        data = b""
        with suppress(ConnectionError), connection:  # its router may go first
            while True:
                while b"\r\n\r\n" not in data:
                    more = connection.recv(1 << 16)
                    if not more:
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                length = int(_field(head, b"content-length"))
                while len(data) < length:
                    data += connection.recv(1 << 16)
                self.heads.append(head)
                self.bodies.append(data[:length])
                data = data[length:]
                act = self._acts.pop(0) if len(self._acts) > 1 else self._acts[0]
                if not act(connection, head):
                    return


def _field(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return b"0"


class ScriptedGrpcNode(_Listening):
    """Answers each HTTP/2 call with these frames, their stream's number filled in.

    ``calls`` are the numbers of the streams that came, ``credit`` the bytes that it may send more
    on each.
    """

    def __init__(self, *frames: Callable[[int], bytes], resets: list[int] | None = None) -> None:
        self._frames = frames
        self.credit: Counter[int] = Counter()
        self._resets = [] if resets is None else resets
        self.calls: list[int] = []
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(ConnectionError), connection, connection.makefile("rb") as stream:
            stream.read(len(h2.PREFACE))
            connection.sendall(h2.settings(1 << 20, 1 << 14))
            while head := stream.read(h2.HEAD.size):
                high, low, kind, flags, number = h2.HEAD.unpack(head)
                payload = stream.read(high << 8 | low)
                if kind == h2.WINDOW_UPDATE:
                    self.credit[number] += h2.word(payload, "WINDOW_UPDATE")
                if kind == h2.RST_STREAM:
                    self._resets.append(number)
                if number and flags & h2.END_STREAM:
                    act = self._frames[min(len(self.calls), len(self._frames) - 1)]
                    self.calls.append(number)
                    connection.sendall(act(number))


def ended(**trailers: str) -> Callable[[int], bytes]:
    """Only trailers."""
    block = b"\x88" + b"".join(literal(k.replace("_", "-"), v) for k, v in trailers.items())
    return lambda number: h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, number, block)


def begun(*data: bytes) -> Callable[[int], bytes]:
    """A head, and each as DATA."""
    return lambda number: (
        h2.frame(h2.HEADERS, h2.END_HEADERS, number, b"\x88")
        + b"".join(h2.frame(h2.DATA, 0, number, one) for one in data)
    )


def sent(*data: bytes) -> Callable[[int], bytes]:
    """A head, each as DATA, and status OK."""
    first, last = begun(*data), ended(grpc_status="0")
    return lambda number: first(number) + last(number)


def nothing(number: int) -> bytes:
    return b""
