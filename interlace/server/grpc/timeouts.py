"""Stalled, idle and hoarding connections: how long, and how much they have left unread."""

from __future__ import annotations

import socket
import time
from collections import deque

from interlace.server.grpc.http2_connection import Http2Connection


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


class StallTimeouts:
    """One connection, looked at from time to time: is it stalled, is it idle, what does it hold."""

    def __init__(self, connection: Http2Connection) -> None:
        self.idle_ms = 0.0  #: without a call, when last looked
        self.kept_bytes = 0  #: copies that wait for the client to make room, when last looked
        self._connection = connection
        self._received_bytes = -1
        self._sent_bytes = -1
        self._stalled_ms = 0.0

    def look(self, since_ms: float) -> bool:
        """Call this every ``since_ms``. Ends streams whose client owes us bytes, or takes none of
        ours, for longer than the limit; False if the connection itself is stuck."""
        connection = self._connection
        self.kept_bytes = 0
        for stream in list(connection.streams.values()):
            stream.look_for_stall(since_ms)
            self.kept_bytes += stream.kept_bytes if stream.queue else 0
        received_bytes = connection.reader.received_bytes
        quiet = not connection.streams and received_bytes == self._received_bytes
        self.idle_ms = self.idle_ms + since_ms if quiet else 0.0
        self._received_bytes = received_bytes
        return not self._stuck(since_ms)

    def _stuck(self, since_ms: float) -> bool:
        connection = self._connection
        sent_bytes = connection.writer.sent_bytes
        waits = connection.writer.backlog_bytes > 0 or not connection.configured
        stands = waits and sent_bytes == self._sent_bytes
        self._stalled_ms = self._stalled_ms + since_ms if stands else 0.0
        self._sent_bytes = sent_bytes
        return self._stalled_ms >= connection.limits.stall_timeout_ms
