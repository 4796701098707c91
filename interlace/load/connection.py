"""A non-blocking connection with at most one call outstanding."""

from __future__ import annotations

import select
import socket
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
        "wants_out",
    )

    def __init__(self, epoll: select.epoll, host: str, port: int) -> None:
        self.epoll, self.host, self.port = epoll, host, port
        self.due_s = 0.0
        self.reason = ""  #: why the last call did not end with 200, as the server says it
        self.open()

    def open(self) -> None:
        """Connect (blocking, at most 5 s).

        Raises:
            OSError: nobody listens.
        """
        self.sock = socket.create_connection((self.host, self.port), _CONNECT_TIMEOUT_S)
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
