"""What happens at the limit of connections: those that are idle longest give way."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final

from interlace.server.http.exchange import OpenConnection

#: How often all connections may be looked through.
LOOK_S: Final = 0.05


class ConnectionAdmission(Enum):
    """What a new connection may do."""

    FREE = "free"  #: everything
    PROBES = "probes"  #: ask after the server's health
    NONE = "none"  #: read that the server is full


class IdleConnections:
    """Connections that could be closed, the longest idle last."""

    def __init__(self) -> None:
        self._found: list[tuple[float, OpenConnection]] = []
        self._looked_s = float("-inf")

    def close_one(self, connections: AbstractSet[OpenConnection], now_s: float) -> bool:
        """Close the connection that has been idle longest; false if none is."""
        connection = self._next()
        if connection is None and now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            idle = [(each.idle_since_s, each) for each in connections if each.idle]
            self._found = sorted(idle, key=lambda entry: -entry[0])
            connection = self._next()
        if connection is None:
            return False
        connection.drain()
        return True

    def _next(self) -> OpenConnection | None:
        """The longest idle of those found that is still idle."""
        while self._found:
            since_s, connection = self._found.pop()
            if connection.idle and connection.idle_since_s == since_s:
                return connection
        return None
