"""Calls of the load generator over kept connections: HTTP/1.1, and unary gRPC over HTTP/2."""

from __future__ import annotations

import gc
import json
import select
import socket
import ssl
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from interlace.load.call import EncodedCall
from interlace.server.grpc import http2_frames as h2

_CONNECT_TIMEOUT_S = 5.0
#: A connection's answer when the other side closed it under a call.
BROKEN = -1


class ClientConnection(ABC):
    """One socket in an epoll set. ``due_s`` is when its call was meant to be sent."""

    __slots__ = (
        "alive",
        "busy",
        "due_s",
        "epoll",
        "host",
        "out",
        "port",
        "reason",
        "sock",
        "tls",
        "wants_out",
    )

    def __init__(
        self, epoll: select.epoll, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.epoll, self.host, self.port, self.tls = epoll, host, port, tls
        self.due_s = 0.0
        self.reason = ""  #: why the last call did not end with 200, as the server says it
        self.open()

    def open(self) -> None:
        """Connect (blocking, at most 5 s).

        Raises:
            OSError: nobody listens.
        """
        self.sock: socket.socket = socket.create_connection(
            (self.host, self.port), _CONNECT_TIMEOUT_S
        )
        if self.tls is not None:
            self.sock = self.tls.wrap_socket(self.sock, server_hostname=self.host)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.alive, self.busy, self.wants_out = True, False, False
        self.out: memoryview | None = None
        self.greet()
        self.sock.setblocking(False)
        self.epoll.register(self.sock.fileno(), select.EPOLLIN)

    def close(self) -> None:
        """Leave the epoll set and close; a second call passes."""
        if self.alive:
            self.alive = False
            self.epoll.unregister(self.sock.fileno())
            self.sock.close()

    @abstractmethod
    def greet(self) -> None:
        """What a fresh connection must send first, and its starting state."""

    @abstractmethod
    def start(self, call: EncodedCall) -> None:
        """Send a call; the connection must be idle."""

    @abstractmethod
    def readable(self) -> int | None:
        """Take what arrived: the status if the call ended, ``BROKEN``, or None if it goes on."""

    def write(self, data: bytes) -> None:
        """Queue bytes and push as many as the socket takes."""
        self.out = memoryview(bytes(self.out) + data if self.out else data)
        self.flush()

    def flush(self) -> None:
        """Push queued bytes; asks epoll for more room when the socket is full."""
        out = self.out
        try:
            while out:
                out = out[self.sock.send(out) :]
        except BlockingIOError:
            pass
        except OSError:
            out = None  # the reading side sees the broken connection
        self.out = out or None
        if (self.out is not None) != self.wants_out:
            self.wants_out = self.out is not None
            mask = select.EPOLLIN | (select.EPOLLOUT if self.wants_out else 0)
            self.epoll.modify(self.sock.fileno(), mask)


CHUNK = 1 << 20
_ERROR_BYTES_MAX = 4096
#: Where all connections receive. ``recv`` would map and unmap a mebibyte of memory for each reply.
_RECEIVED: Final = memoryview(bytearray(CHUNK))


class Http1(ClientConnection):
    """Reads a reply by its Content-Length or to its last chunk; keeps bodies of errors alone."""

    __slots__ = ("chunked", "closing", "error", "head", "left", "status", "tail")

    def greet(self) -> None:
        self.head, self.left, self.chunked, self.tail = b"", -1, False, b""
        self.status, self.closing, self.error, self.reason = 0, False, b"", ""

    def start(self, call: EncodedCall) -> None:
        self.greet()
        self.busy = True
        self.write(call.payload)

    def readable(self) -> int | None:
        while True:
            try:
                count = self.sock.recv_into(_RECEIVED)
            except BlockingIOError:
                return None
            except OSError as error:
                return self._broken(str(error))
            if not count:
                return self._broken("closed by the server")
            if self.left >= 0 and self.status == 200:
                self.left -= count
                complete = self.left <= 0
            else:
                try:
                    complete = self._take(bytes(_RECEIVED[:count]))
                except ValueError:
                    return self._broken("not HTTP")
            if complete:
                return self._finish()

    def _broken(self, reason: str) -> int:
        self.reason = reason
        return BROKEN

    def _take(self, data: bytes) -> bool:
        """Whether the reply is complete.

        Raises:
            ValueError: it is not HTTP.
        """
        if self.status not in (0, 200):
            self.error = (self.error + data)[:_ERROR_BYTES_MAX]
        if self.left >= 0:
            self.left -= len(data)
            return self.left <= 0
        if self.chunked:
            self.tail = (self.tail + data)[-8:]
            return self.tail.endswith(b"0\r\n\r\n")
        self.head += data
        end = self.head.find(b"\r\n\r\n")
        if not self.head.startswith(b"HTTP/1."[: len(self.head)]):
            raise ValueError
        return end >= 0 and self._begin(self.head[:end].lower(), self.head[end + 4 :])

    def _begin(self, head: bytes, body: bytes) -> bool:
        self.head = b""
        self.status = int(head[9:12])
        self.error = b"" if self.status == 200 else body[:_ERROR_BYTES_MAX]
        self.closing = b"connection: close" in head
        at = head.find(b"\ncontent-length:")
        if at >= 0:
            end = head.find(b"\r\n", at + 1)
            self.left = max(0, int(head[at + 16 : end if end >= 0 else None]) - len(body))
            return self.left == 0
        if b"transfer-encoding: chunked" in head:
            self.chunked, self.tail = True, body[-8:]
            return self.tail.endswith(b"0\r\n\r\n")
        return True

    def _finish(self) -> int:
        self.busy = False
        status = self.status
        self.reason = "" if status == 200 else _reason(status, self.error)
        if self.closing:
            self.close()
        return status


def _reason(status: int, body: bytes) -> str:
    """The reason in an error body, else the status as text."""
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"


#: Statuses of a call without a message: refused or failed, and a stream that was reset.
FAILED, RESET = 500, 503


class Http2(ClientConnection):
    """One stream at a time; a reply with a message counts as 200."""

    __slots__ = ("got", "input", "left", "max_frame", "pending", "received", "stream", "window",
                 "window_first", "window_stream")  # fmt: skip

    def greet(self) -> None:
        self.stream, self.window = -1, h2.DEFAULT_WINDOW
        self.window_first, self.window_stream = h2.DEFAULT_WINDOW, 0
        self.max_frame = h2.DEFAULT_FRAME
        self.input, self.left, self.got, self.received = b"", 0, 0, 0
        self.pending: memoryview | None = None
        # The server may send as much as it likes; the grant is renewed long before it is used up.
        pairs = h2.INITIAL_WINDOW_SIZE, h2.MAX_WINDOW, h2.MAX_FRAME_SIZE, 1 << 22
        settings = h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HIHI", *pairs))
        grant = h2.window_update(0, h2.MAX_WINDOW - h2.DEFAULT_WINDOW)
        self.sock.sendall(h2.PREFACE + settings + grant)

    def start(self, call: EncodedCall) -> None:
        self.stream += 2
        self.busy, self.got = True, 0
        self.window_stream = self.window_first
        self.pending = memoryview(call.payload)
        opening = h2.frame(h2.HEADERS, h2.END_HEADERS, self.stream, call.head)
        self.write(opening + self._data())

    def _data(self) -> bytes:
        """As many DATA frames as both windows allow."""
        out: list[bytes | memoryview] = []
        left = self.pending
        while left is not None:
            size = min(len(left), self.max_frame, self.window, self.window_stream)
            if size <= 0:
                break
            last = size == len(left)
            flags = h2.END_STREAM if last else 0
            head = h2.HEAD.pack(size >> 8, size & 0xFF, h2.DATA, flags, self.stream)
            out += [head, left[:size]]
            self.window -= size
            self.window_stream -= size
            left = None if last else left[size:]
        self.pending = left
        return b"".join(out)

    def readable(self) -> int | None:
        try:
            count = self.sock.recv_into(_RECEIVED)
        except BlockingIOError:
            return None
        except OSError:
            return BROKEN
        if not count:
            return BROKEN
        buffer, at = self.input + bytes(_RECEIVED[self._data_in(count) : count]), 0
        status: int | None = None
        while len(buffer) - at >= 9:
            high, low, kind, flags, stream = h2.HEAD.unpack_from(buffer, at)
            size = high << 8 | low
            at += 9
            if kind == h2.DATA:
                self.left = size
                at += self._data_in(len(buffer) - at)
            elif len(buffer) - at < size:
                at -= 9
                break
            else:
                ended = self._frame(kind, flags, stream & h2.MAX_WINDOW, buffer[at : at + size])
                status = status if ended is None else ended
                at += size
        self.input = buffer[at:]
        return self._settle(status)

    def _data_in(self, count: int) -> int:
        """How many of the next bytes belong to the DATA frame that is being read."""
        count = min(self.left, count)
        self.left -= count
        self.got += count
        self.received += count
        return count

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> int | None:
        """Handle a frame without data; the status if it ends the call."""
        if kind == h2.HEADERS and flags & h2.END_STREAM and stream == self.stream:
            return 200 if self.got else FAILED
        elif kind == h2.SETTINGS and not flags & h2.ACK:
            self._settings(payload)
        elif kind == h2.PING and not flags & h2.ACK:
            self.write(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif kind == h2.WINDOW_UPDATE:
            self._window(stream, h2.word(payload, "WINDOW_UPDATE") & h2.MAX_WINDOW)
        elif kind == h2.RST_STREAM and stream == self.stream:
            return RESET
        elif kind == h2.GOAWAY:
            return BROKEN
        return None

    def _settings(self, payload: bytes) -> None:
        for key, value in h2.read_settings(payload):
            if key == h2.INITIAL_WINDOW_SIZE:
                self.window_stream += value - self.window_first
                self.window_first = value
            elif key == h2.MAX_FRAME_SIZE:
                self.max_frame = min(value, CHUNK)
        self.write(h2.frame(h2.SETTINGS, h2.ACK, 0))

    def _window(self, stream: int, size: int) -> None:
        if stream == 0:
            self.window += size
        elif stream == self.stream:
            self.window_stream += size

    def _settle(self, status: int | None) -> int | None:
        if self.received > 1 << 29:
            self.write(h2.window_update(0, self.received))
            self.received = 0
        if status is not None:
            self.busy = False
        elif self.pending is not None:
            more = self._data()
            if more:
                self.write(more)
        return status


KINDS: Final[Mapping[str, type[ClientConnection]]] = MappingProxyType(
    {"http": Http1, "grpc": Http2}
)
#: Protocol, host, port.
Address = tuple[str, str, int]
#: Time for a server's first SETTINGS to arrive before calls are timed.
_SETTLE_S: Final = 0.05


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection inside: it stops the generator for tens of ms and looks like load."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class ConnectionPool:
    """Idle and busy connections; at most ``limit`` an address and protocol."""

    def __init__(self, limit: int) -> None:
        self.epoll = select.epoll()
        self.limit = limit
        self._by_fd: dict[int, ClientConnection] = {}
        self._idle: dict[Address, list[ClientConnection]] = {}
        self._open: dict[Address, int] = {}

    def prepare(self, call: EncodedCall, count: int) -> None:
        """Open ``count`` connections ahead of the first call."""
        for _ in range(min(count, self.limit)):
            connection = self._connect(call)
            self._idle[_address(call)].append(connection)
        if call.proto == "grpc":
            end = time.perf_counter() + _SETTLE_S
            while time.perf_counter() < end:
                for fd, _ in self.epoll.poll(0.01):
                    self._by_fd[fd].readable()

    def take(self, call: EncodedCall) -> ClientConnection | None:
        """An idle connection for a call, a new one, or None when the limit is reached.

        Raises:
            OSError: nobody listens.
        """
        key = _address(call)
        idle = self._idle.setdefault(key, [])
        if idle:
            return idle.pop()
        return self._connect(call) if self._open.get(key, 0) < self.limit else None

    def _connect(self, call: EncodedCall) -> ClientConnection:
        key = _address(call)
        connection = KINDS[call.proto](self.epoll, call.host, call.port, call.tls)
        self._idle.setdefault(key, [])
        self._open[key] = self._open.get(key, 0) + 1
        self._by_fd[connection.sock.fileno()] = connection
        return connection

    def ended(self, events: Sequence[tuple[int, int]]) -> Iterator[tuple[ClientConnection, int]]:
        """Calls that ended, given what epoll saw: connection (idle again or gone) and status."""
        for fd, mask in events:
            connection = self._by_fd.get(fd)
            if connection is None:
                continue
            if mask & select.EPOLLOUT:
                connection.flush()
            if mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                was_busy = connection.busy
                status = connection.readable()
                if status is not None:
                    self._settle(fd, connection, status)
                    if was_busy:
                        yield connection, status

    def _settle(self, fd: int, connection: ClientConnection, status: int) -> None:
        kind = "http" if isinstance(connection, Http1) else "grpc"
        key = kind, connection.host, connection.port
        del self._by_fd[fd]
        if status == BROKEN or not connection.alive:
            connection.close()
            self._open[key] -= 1
            if connection in self._idle[key]:
                self._idle[key].remove(connection)
        else:
            self._by_fd[connection.sock.fileno()] = connection
            self._idle[key].append(connection)

    def close(self) -> None:
        """Close everything."""
        for connection in self._by_fd.values():
            connection.close()
        self.epoll.close()


def _address(call: EncodedCall) -> Address:
    return call.proto, call.host, call.port
