"""gRPC connections on the server's event loop: read received bytes, write replies, in turns.

Sockets are read here rather than by asyncio's protocols, for two reasons. The bytes after a frame's
head go straight into the arena (``recvmsg`` into two places). All calls that one turn reads are
answered together, with one system call a connection.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from typing import Final

from interlace.server.grpc.http2_connection import Http2Connection
from interlace.server.grpc.http2_frames import (
    ENHANCE_YOUR_CALM,
    INTERNAL_ERROR,
    NO_ERROR,
    PeerError,
)
from interlace.server.grpc.service import GrpcService
from interlace.server.limits import GrpcLimits, RefusalBucket
from interlace.server.tls import HANDSHAKE_S, HANDSHAKES_A_TURN, FollowedContext, HandshakeLog

_log = logging.getLogger(__name__)

_SCRATCH_BYTES: Final = 256 << 10
#: How often stalled connections are looked for.
_TICK_S: Final = 1.0
#: Connections that have a turn before others of the event loop have theirs.
_CONNECTIONS_A_TURN: Final = 64
#: A connection without calls for this long makes way for a new one where there are too many.
_IDLE_MS: Final = 10_000.0
_READ: Final = select.EPOLLIN
_WRITE: Final = select.EPOLLOUT


class _Client:
    """A connection, and what the loop waits for on it."""

    __slots__ = ("connection", "interest", "rests")

    def __init__(
        self, make: Callable[[Callable[[], None]], Http2Connection], wake: Callable[[_Client], None]
    ) -> None:
        """``make`` gets what the connection calls when it has something to write."""
        self.interest = _READ
        self.rests = False  #: not read for a while, for calls of it that were refused
        self.connection = make(lambda: wake(self))


class LingeringSockets:
    """Sockets that are not read any more, each kept for ``linger_s``, ``limit`` of them at most.

    A peer that waits for the end before it connects again is held to one connection in that time.
    """

    def __init__(self, linger_s: float, limit: int) -> None:
        self._linger_s = linger_s
        self._limit = limit
        self._kept: deque[tuple[float, socket.socket]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, sock: socket.socket) -> None:
        """Close it later; the oldest now, where there are too many."""
        self._kept.append((time.monotonic() + self._linger_s, sock))
        if len(self._kept) > self._limit:
            self._kept.popleft()[1].close()

    def expire(self) -> None:
        """Close those whose time has passed."""
        now_s = time.monotonic()
        while self._kept and self._kept[0][0] <= now_s:
            self._kept.popleft()[1].close()

    def close(self) -> None:
        """Close all."""
        while self._kept:
            self._kept.popleft()[1].close()


class EpollLoop:
    """One epoll set in the event loop: the listener, and every connection.

    A connection whose bytes hold more than one turn's work goes on in the next, after those that
    have just got some.
    """

    def __init__(self, service: GrpcService, limits: GrpcLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self._service = service
        self._limits = limits
        self._epoll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._due: set[_Client] = set()  #: have something to write
        #: Have frames left from their last turn. In order: a set of them.
        self._unfinished: dict[_Client, None] = {}
        self._lingering = LingeringSockets(limits.linger_s, limits.max_lingering)
        self._listeners: list[socket.socket] = []
        self._tls: FollowedContext | None = None
        #: Handshakes, until when, and with whom.
        self._shaking: dict[int, tuple[ssl.SSLSocket, float, tuple[object, ...]]] = {}
        self._handshake_log = HandshakeLog("gRPC")
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._refusals = RefusalBucket()
        self._called = False  #: ``_turn`` is called soon, with or without anything to read
        self._timer: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        return len(self._clients)

    def listen(self, listener: socket.socket, tls: FollowedContext | None = None) -> None:
        """Accept connections from this socket, with ``tls`` no others, and serve them."""
        self._listeners.append(listener)
        self._tls = tls
        self._epoll.register(listener.fileno(), _READ)
        if self._timer is not None:
            return
        self._loop.add_reader(self._epoll.fileno(), self._turn)
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def drain(self) -> None:
        """No new connections or calls; those that run are finished."""
        for listener in self._listeners:
            self._epoll.unregister(listener.fileno())
            listener.close()
        self._listeners.clear()
        self._give_up_handshakes(inf, OSError("this server ends"))
        for client in self._clients.values():
            client.connection.drain()

    def close(self) -> None:
        """Close everything. Twice is once."""
        if self._epoll.closed:
            return
        self._loop.remove_reader(self._epoll.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._lingering.close()
        self._give_up_handshakes(inf, OSError("this server ends"))
        for client in list(self._clients.values()):
            self._close(client)
        self._epoll.close()
        for listener in self._listeners:
            listener.close()

    def _wake(self, client: _Client) -> None:
        self._due.add(client)
        self._call_soon()

    def _call_soon(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self._epoll.closed:
            return
        self._called = True  # what becomes due in this turn is written at its end
        try:
            self._read()
            self._write()
        finally:
            self._called = False
            if self._unfinished or self._due:
                self._call_soon()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        self._accept_again(True)
        self._service.look()
        self._look_for_stalls()
        self._give_up_handshakes(self._loop.time(), TimeoutError())
        self._lingering.expire()

    def _read(self) -> None:
        """Give each connection that has sent something its turn."""
        events, handshakes = self._epoll.poll(0.0, _CONNECTIONS_A_TURN), HANDSHAKES_A_TURN
        unfinished = dict.fromkeys(islice(self._unfinished, _CONNECTIONS_A_TURN))
        for waiting in unfinished:
            del self._unfinished[waiting]
        for fd, event in events:
            client = self._clients.get(fd)
            if client is None:
                if fd not in self._shaking:
                    self._accept()
                elif handshakes:  # the others in the next turn: each computes for long
                    handshakes -= 1
                    self._shake_hands(fd)
                continue
            if event & ~_READ:  # room to write, or an end to be found by trying
                self._due.add(client)
            readable = event & ~_WRITE and client.interest & _READ
            if readable and client not in unfinished and client not in self._unfinished:
                self._receive(client)
        for waiting in unfinished:
            there = self._clients.get(waiting.connection.sock.fileno()) is waiting
            if there and waiting.interest & _READ:  # else when there is room again
                self._receive(waiting)

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
            _log.exception("a gRPC connection failed")
            self._close(client, PeerError(INTERNAL_ERROR, "internal error"))

    def _write(self) -> None:
        due, self._due = self._due, set()
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
        if writer.refused:
            self._count_refused(client)
        interest = 0 if writer.congested or client.rests else _READ
        if writer.backlog_bytes:
            interest |= _WRITE
        if interest != client.interest and connection.sock.fileno() in self._clients:
            client.interest = interest
            self._epoll.modify(connection.sock.fileno(), interest)
            if interest & _READ and connection.reader.unfinished:
                self._unfinished[client] = None

    def _count_refused(self, client: _Client) -> None:
        """Let a connection rest if more calls are refused than may be; those that run go on."""
        writer = client.connection.writer
        refused, writer.refused = writer.refused, 0
        rest_s = self._refusals.rest_s(refused)
        if rest_s and not client.rests:
            client.rests = True
            self._loop.call_later(rest_s, self._read_again, client)

    def _read_again(self, client: _Client) -> None:
        client.rests = False
        if self._clients.get(client.connection.sock.fileno()) is client:
            self._wake(client)

    def _accept(self) -> None:
        for listener in tuple(self._listeners):
            self._accept_from(listener)

    def _accept_from(self, listener: socket.socket) -> None:
        while self._listeners:
            try:
                sock, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors or memory: try again with the next tick
                self._accept_again(False)
                return
            open_now = len(self._clients) + len(self._shaking)
            if open_now >= self._limits.max_connections and not self._make_room():
                sock.close()
                continue
            sock.setblocking(False)
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._tls is None:
                self._connected(sock)
                self._epoll.register(sock.fileno(), _READ)
            else:
                self._begin_handshake(sock, self._tls.now(), peer)

    def _connected(self, sock: socket.socket) -> None:
        share = 1.0 / (1 + len(self._lingering))
        make = partial(
            Http2Connection, sock, self._service, self._limits, self._scratch, burst_share=share
        )
        self._clients[sock.fileno()] = _Client(make, self._wake)

    def _begin_handshake(
        self, sock: socket.socket, context: ssl.SSLContext, peer: tuple[object, ...]
    ) -> None:
        try:
            sock.getpeername()  # of one that has gone, a socket would be left unclosed
            tls = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:  # it has gone
            sock.close()
            return
        self._shaking[tls.fileno()] = tls, self._loop.time() + HANDSHAKE_S, peer
        self._epoll.register(tls.fileno(), _READ)

    def _shake_hands(self, fd: int) -> None:
        sock = self._shaking[fd][0]
        try:
            sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._give_up_handshake(fd, error)
            return
        del self._shaking[fd]
        self._connected(sock)

    def _give_up_handshakes(self, now_s: float, why: OSError) -> None:
        """Those that had their time, the oldest first."""
        for fd, (_, ends_s, _) in list(self._shaking.items()):
            if ends_s > now_s:
                return
            self._give_up_handshake(fd, why)

    def _give_up_handshake(self, fd: int, error: OSError) -> None:
        sock, _, peer = self._shaking.pop(fd)
        self._epoll.unregister(fd)
        self._handshake_log.failed(peer, error)
        sock.close()

    def _make_room(self) -> bool:
        """Give up the connection that has been idle for longest; its client opens another.

        The oldest handshake goes before, where they are many.
        """
        if len(self._shaking) > self._limits.max_connections // 8:
            self._give_up_handshake(next(iter(self._shaking)), OSError("too many connections"))
            return True
        idlest = max(self._clients.values(), key=lambda client: client.connection.idle_ms)
        if idlest.connection.idle_ms < _IDLE_MS:
            return False
        self._close(idlest, PeerError(NO_ERROR, "idle, and others are waiting"))
        return True

    def _accept_again(self, wanted: bool) -> None:
        for listener in self._listeners:
            self._epoll.modify(listener.fileno(), _READ if wanted else 0)

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
        """Cut off clients that left a greeting, a message, or our answers lying."""
        for client in list(self._clients.values()):
            if not client.connection.look(_TICK_S * 1000.0):
                self._close(client)
        kept = sorted(self._clients.values(), key=lambda client: client.connection.kept_bytes)
        excess = sum(client.connection.kept_bytes for client in kept) - self._limits.max_heap_bytes
        while excess > 0:  # of clients that ask and do not read their answers
            client = kept.pop()
            excess -= client.connection.kept_bytes
            self._close(client, PeerError(ENHANCE_YOUR_CALM, "answers are not being read"))
