"""Connections by address and protocol, in one epoll set."""

from __future__ import annotations

import gc
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

from interlace.load.call import EncodedCall
from interlace.load.http1 import BROKEN, ClientConnection, Http1
from interlace.load.http2 import Http2

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
