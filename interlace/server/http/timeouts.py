"""Timeouts of connections: idle ones, slow senders, and clients that do not read."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from interlace.server.errors import HttpError
from interlace.server.http.connection import HttpConnection
from interlace.server.http.exchange import Phase
from interlace.server.limits import HttpLimits


@dataclass(slots=True)
class _Mark:
    """Since when a connection is where it is, and when it last got further, in s."""

    where: tuple[int, Phase, bool]
    since_s: float
    progress: int
    moved_s: float


class ConnectionTimeouts:
    """Looks at every connection at intervals, so that requests cost no timers."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._marks: dict[HttpConnection, _Mark] = {}

    def sweep(self, connections: AbstractSet[HttpConnection], now_s: float) -> None:
        """Close what has waited too long."""
        marks = {}
        for connection in tuple(connections):
            mark = marks[connection] = self._mark(connection, now_s)
            self._judge(connection, mark, now_s)
        self._marks = marks

    def _mark(self, connection: HttpConnection, now_s: float) -> _Mark:
        progress = connection.progress
        begun = connection.phase is Phase.HEAD and progress > 0
        where = (connection.served, connection.phase, begun)
        mark = self._marks.get(connection)
        if mark is None or mark.where != where:
            return _Mark(where, now_s, progress, now_s)
        if mark.progress != progress:
            mark.progress, mark.moved_s = progress, now_s
        return mark

    def _judge(self, connection: HttpConnection, mark: _Mark, now_s: float) -> None:
        limits, transport = self._limits, connection.transport
        spent_s, still_s = now_s - mark.since_s, now_s - mark.moved_s
        if transport is None:
            return
        match mark.where:
            case (_, Phase.HEAD, False):
                if spent_s > limits.idle_s:
                    transport.close()
            case (_, Phase.HEAD, True):
                if spent_s > limits.head_s:
                    connection.refuse(HttpError(408, f"no whole head within {limits.head_s:g} s"))
            case (_, Phase.BODY, _):
                if still_s > limits.body_idle_s or spent_s > self._allowed_s(mark.progress):
                    connection.refuse(HttpError(408, "the request body comes too slowly"))
            case (_, Phase.SEND, _):
                if still_s > limits.send_idle_s:
                    transport.abort()
            case (_, Phase.LINGER, _):
                if spent_s > limits.linger_s:
                    transport.abort()

    def _allowed_s(self, received_bytes: int) -> float:
        by_rate_s = self._limits.body_idle_s + received_bytes / self._limits.body_bytes_per_s
        return min(by_rate_s, self._limits.body_s)
