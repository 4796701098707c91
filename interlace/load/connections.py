"""Calls of the load generator, ready for the socket, and the connections that are kept for them."""

from __future__ import annotations

import gc
import json
import select
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

_CONNECT_TIMEOUT_S = 5.0
#: A connection's answer when the other side closed it under a call.
BROKEN = -1
#: Time for servers' greetings to arrive before calls are timed.
_SETTLE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class EncodedCall:
    """A call as it goes out over connections of its kind; some send a ``head`` before."""

    kind: type[ClientConnection]
    port: int
    payload: bytes
    head: bytes = b""
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None

    @property
    def address(self) -> Address:
        """Whose connections it takes."""
        return self.kind, self.host, self.port


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

    @property
    def address(self) -> Address:
        """Whose calls it takes."""
        return type(self), self.host, self.port

    @property
    def greeted(self) -> bool:
        """Whether the server has said what it says before any call."""
        return True

    @abstractmethod
    def greet(self) -> None:
        """What a fresh connection must send first, and its starting state."""

    @abstractmethod
    def start(self, call: EncodedCall) -> None:
        """Send a call; the connection must be idle."""

    @abstractmethod
    def readable(self) -> int | None:
        """Take what arrived: the status if the call ended, ``BROKEN``, or None if it goes on."""

    def write(self, data: bytes | memoryview) -> None:
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


#: Kind of connection, host, port.
Address = tuple[type[ClientConnection], str, int]
CHUNK = 1 << 20
_ERROR_BYTES_MAX = 4096
_HEAD_BYTES_MAX: Final = 1 << 14
#: Where all connections receive. ``recv`` would map and unmap a mebibyte of memory for each reply.
RECEIVED: Final = memoryview(bytearray(CHUNK))


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
                count = self.sock.recv_into(RECEIVED)
            except BlockingIOError:
                return None
            except OSError as error:
                return self._broken(str(error))
            if not count:
                return self._broken("closed by the server")
            data = RECEIVED[:count]
            try:
                complete = self._take(data) if self.status == 0 else self._body(data)
            except ValueError:
                return self._broken("not HTTP")
            if complete:
                return self._finish()

    def _broken(self, reason: str) -> int:
        self.reason = reason
        return BROKEN

    def _take(self, data: memoryview) -> bool:
        """Whether the reply is complete, whose head is not.

        Raises:
            ValueError: it is not HTTP.
        """
        before = len(self.head)
        self.head += bytes(data[:_HEAD_BYTES_MAX])  # a body of any size may follow: no copy of it
        end = self.head.find(b"\r\n\r\n")
        if not self.head.startswith(b"HTTP/1."[: len(self.head)]):
            raise ValueError
        if end >= 0:
            return self._begin(self.head[:end].lower(), data[end + 4 - before :])
        if len(self.head) >= _HEAD_BYTES_MAX:
            raise ValueError
        return False

    def _begin(self, head: bytes, body: memoryview) -> bool:
        self.head = b""
        self.status = int(head[9:12])
        self.closing = b"connection: close" in head
        at = head.find(b"\ncontent-length:")
        if at >= 0:
            end = head.find(b"\r\n", at + 1)
            self.left = int(head[at + 16 : end if end >= 0 else None])
        else:
            self.chunked = b"transfer-encoding: chunked" in head
        return self._body(body)

    def _body(self, data: memoryview) -> bool:
        """Whether the reply is complete with these bytes of its body."""
        if self.status != 200:
            self.error = (self.error + bytes(data[:_ERROR_BYTES_MAX]))[:_ERROR_BYTES_MAX]
        if self.left >= 0:
            self.left -= len(data)
            return self.left <= 0
        if self.chunked:
            self.tail = (self.tail + bytes(data[-8:]))[-8:]
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


@dataclass(frozen=True, slots=True)
class Call:
    """One call: an HTTP/1.1 POST."""

    port: int
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None

    def encoded(self) -> EncodedCall:
        """The call as bytes."""
        lines = "".join(f"{key}: {value}\r\n" for key, value in self.headers.items())
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n{lines}"
            f"Content-Length: {len(self.body)}\r\n\r\n"
        )
        return EncodedCall(Http1, self.port, head.encode() + self.body, b"", self.host, self.tls)


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
    """Idle and busy connections; at most ``limit`` an address."""

    def __init__(self, limit: int) -> None:
        self.epoll = select.epoll()
        self.limit = limit
        self._by_fd: dict[int, ClientConnection] = {}
        self._idle: dict[Address, list[ClientConnection]] = {}
        self._open: dict[Address, int] = {}

    def prepare(self, call: EncodedCall, count: int) -> None:
        """Open ``count`` connections ahead of the first call."""
        made = [self._connect(call) for _ in range(min(count, self.limit))]
        self._idle[call.address] += made
        end = time.perf_counter() + _SETTLE_S
        while not all(one.greeted for one in made) and time.perf_counter() < end:
            for fd, _ in self.epoll.poll(0.01):
                self._by_fd[fd].readable()

    def take(self, call: EncodedCall) -> ClientConnection | None:
        """An idle connection for a call, a new one, or None when the limit is reached.

        Raises:
            OSError: nobody listens.
        """
        key = call.address
        idle = self._idle.setdefault(key, [])
        if idle:
            return idle.pop()
        return self._connect(call) if self._open.get(key, 0) < self.limit else None

    def _connect(self, call: EncodedCall) -> ClientConnection:
        key = call.address
        connection = call.kind(self.epoll, call.host, call.port, call.tls)
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
        key = connection.address
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
