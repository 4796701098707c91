"""The gRPC process's turn: read what came, tell the main process, write what is due."""

from __future__ import annotations

import select
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from interlace.server.grpc.http2_connection import Http2Connection
from interlace.server.grpc.http2_frames import (
    ENHANCE_YOUR_CALM,
    INTERNAL_ERROR,
    NO_ERROR,
    PeerError,
)
from interlace.server.grpc.limits import GrpcLimits
from interlace.server.grpc.lingering import LingeringSockets
from interlace.server.grpc.service import GrpcService
from interlace.server.grpc.stall_timeouts import StallTimeouts

_SCRATCH_BYTES: Final = 256 << 10
#: How often ``look`` is called.
TICK_S: Final = 1.0
_SOON_S: Final = 0.002
#: A connection without calls for this long makes way for a new one where there are too many.
_IDLE_MS: Final = 10_000.0
_READ: Final = select.EPOLLIN
_WRITE: Final = select.EPOLLOUT


class _Client:
    """A connection, and what the loop waits for on it."""

    __slots__ = ("connection", "interest", "patience")

    def __init__(
        self, make: Callable[[Callable[[], None]], Http2Connection], due: set[_Client]
    ) -> None:
        """``make`` gets what the connection calls when it has something to write."""
        self.interest = _READ
        self.connection = make(lambda: due.add(self))
        self.patience = StallTimeouts(self.connection)


class EpollLoop:
    """One thread, one epoll: the listener, the connections, and the link to the main process.

    Everything that one turn reads is answered together: frames to the main process leave in one
    packet, and the answers on one connection in one system call. A connection whose bytes hold more
    than one turn's work goes on in the next, after those that have just got some.
    """

    def __init__(self, service: GrpcService, limits: GrpcLimits) -> None:
        self._service = service
        self._limits = limits
        self._epoll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._due: set[_Client] = set()  #: to be looked at when this turn writes
        #: Have frames left from their last turn. In order: a set of them.
        self._unfinished: dict[_Client, None] = {}
        self._lingering = LingeringSockets(limits.linger_s, limits.max_lingering)
        self._others: dict[int, Callable[[], None]] = {}
        self._listener: socket.socket | None = None
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._stop = False

    @property
    def connections(self) -> int:
        return len(self._clients)

    def watch(self, fd: int, readable: Callable[[], None]) -> None:
        """Call ``readable`` when the descriptor is; before any connection is read."""
        self._others[fd] = readable
        self._epoll.register(fd, _READ)

    def want_write(self, fd: int, wanted: bool) -> None:
        """Wake up also when a watched descriptor takes bytes again."""
        self._epoll.modify(fd, _READ | _WRITE if wanted else _READ)

    def listen(self, listener: socket.socket) -> None:
        """Accept connections from this socket."""
        listener.setblocking(False)
        self._listener = listener
        self.watch(listener.fileno(), self._accept)

    def drain(self) -> None:
        """No new connections or calls; those that run are finished."""
        if self._listener is not None:
            self._epoll.unregister(self._listener.fileno())
            del self._others[self._listener.fileno()]
            self._listener.close()
            self._listener = None
        for client in self._clients.values():
            client.connection.drain()

    def stop(self) -> None:
        """Leave ``run`` at the end of this turn."""
        self._stop = True

    def run(
        self,
        tell: Callable[[], None],
        waiting: Callable[[], bool],
        tick: Callable[[], None],
    ) -> None:
        """Turn until stopped, with a ``tick`` each second.

        ``tell`` sends the main process what a turn's reads gave, before the turn writes. What the
        writes gave (deliveries) is not worth a packet of its own: if ``waiting`` says that there
        is some, the next turn takes it along, and comes soon.
        """
        next_tick_s = time.monotonic() + TICK_S
        while not self._stop:
            wait_s = _SOON_S if waiting() else max(0.0, next_tick_s - time.monotonic())
            self.read(0.0 if self._unfinished else wait_s)
            tell()
            self.write()
            if time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + TICK_S
                tick()
                self.look()
        self.close()

    def fileno(self) -> int:
        """Readable when there is something to ``read``, for whoever turns the loop itself."""
        return self._epoll.fileno()

    @property
    def unfinished(self) -> bool:
        """Whether the next turn has work that no descriptor tells of."""
        return bool(self._unfinished)

    def look(self) -> None:
        """Once every ``TICK_S``: who stands still, who may go, who can be accepted again."""
        self._accept_again(True)
        self._look_for_stalls()
        self._lingering.expire()

    def close(self) -> None:
        """Close everything."""
        self._lingering.close()
        for client in list(self._clients.values()):
            self._close(client)
        self._epoll.close()
        if self._listener is not None:
            self._listener.close()

    def read(self, wait_s: float) -> None:
        """Wait so long for something to come, then give each connection its turn."""
        events = self._epoll.poll(wait_s)
        for fd, _ in events:
            other = self._others.get(fd)
            if other is not None:
                other()
        unfinished, self._unfinished = self._unfinished, {}
        for fd, event in events:
            client = self._clients.get(fd)
            if client is None:
                continue
            if event & ~_READ:  # room to write, or an end to be found by trying
                self._due.add(client)
            if event & ~_WRITE and client.interest & _READ and client not in unfinished:
                self._receive(client)
        for client in unfinished:
            there = self._clients.get(client.connection.sock.fileno()) is client
            if there and client.interest & _READ:  # else when there is room again
                self._receive(client)

    def _receive(self, client: _Client) -> None:
        connection = client.connection
        try:
            if not connection.receive():
                self._close(client)
                return
            if connection.draining or connection.writer.congested:
                self._due.add(client)  # to be closed, or read no more
            if connection.reader.unfinished:
                self._unfinished[client] = None
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._close(client)
        except PeerError as fault:
            self._close(client, fault)
        except Exception:  # a mistake of ours costs this connection, not the others
            traceback.print_exc()
            self._close(client, PeerError(INTERNAL_ERROR, "internal error"))

    def write(self) -> None:
        """Send what is due."""
        due = list(self._due)
        self._due.clear()  # the same set: the connections know it
        for client in due:
            self._flush(client)

    def _flush(self, client: _Client) -> None:
        connection = client.connection
        writer = connection.writer
        try:
            writer.flush()
        except OSError:
            self._close(client)
            return
        if connection.done:
            self._close(client)
            return
        interest = 0 if writer.congested else _READ
        if writer.backlog_bytes:
            interest |= _WRITE
        if interest != client.interest and connection.sock.fileno() in self._clients:
            client.interest = interest
            self._epoll.modify(connection.sock.fileno(), interest)
            if interest & _READ and connection.reader.unfinished:
                self._unfinished[client] = None

    def _accept(self) -> None:
        while self._listener is not None:
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors or memory: try again with the next tick
                self._accept_again(False)
                return
            if len(self._clients) >= self._limits.max_connections and not self._make_room():
                sock.close()
                continue
            sock.setblocking(False)
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            share = 1.0 / (1 + len(self._lingering))
            make = partial(
                Http2Connection, sock, self._service, self._limits, self._scratch, burst_share=share
            )
            self._clients[sock.fileno()] = _Client(make, self._due)
            self._epoll.register(sock.fileno(), _READ)

    def _make_room(self) -> bool:
        """Give up the connection that has been idle for longest; its client opens another."""
        idlest = max(self._clients.values(), key=lambda client: client.patience.idle_ms)
        if idlest.patience.idle_ms < _IDLE_MS:
            return False
        self._close(idlest, PeerError(NO_ERROR, "idle, and others are waiting"))
        return True

    def _accept_again(self, wanted: bool) -> None:
        if self._listener is not None:
            self._epoll.modify(self._listener.fileno(), _READ if wanted else 0)

    def _close(self, client: _Client, fault: PeerError | None = None) -> None:
        sock = client.connection.sock
        if self._clients.pop(sock.fileno(), None) is None:
            return
        self._epoll.unregister(sock.fileno())
        self._unfinished.pop(client, None)
        client.connection.end(fault)
        if fault is not None and fault.code == ENHANCE_YOUR_CALM:
            self._lingering.add(sock)
        else:
            sock.close()

    def _look_for_stalls(self) -> None:
        """Cut off who left a greeting, a message, or our answers lying."""
        for client in list(self._clients.values()):
            if not client.patience.look(TICK_S * 1000.0):
                self._close(client)
        kept = sorted(self._clients.values(), key=lambda client: client.patience.kept_bytes)
        excess = sum(client.patience.kept_bytes for client in kept) - self._limits.max_heap_bytes
        while excess > 0:  # who asks and does not read what it gets
            client = kept.pop()
            excess -= client.patience.kept_bytes
            self._close(client, PeerError(ENHANCE_YOUR_CALM, "answers are not being read"))
