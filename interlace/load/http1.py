"""HTTP/1.1 calls on a kept-alive connection."""

from __future__ import annotations

import json
import select
import socket
import ssl
from abc import ABC, abstractmethod

from interlace.load.call import EncodedCall

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
                data = self.sock.recv(CHUNK)
            except BlockingIOError:
                return None
            except OSError as error:
                return self._broken(str(error))
            if not data:
                return self._broken("closed by the server")
            try:
                complete = self._take(data)
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
