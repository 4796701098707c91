"""What all connections of one HTTP server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.server.heap_budget import HeapBudget
from interlace.server.http.bodies import HeapBody
from interlace.server.http.chunked_coding import ChunkedBody
from interlace.server.http.exchange import BodyPlacer, OpenConnection, RequestHandler
from interlace.server.http.limits import HttpLimits
from interlace.server.http.request_head import CHUNKED, RequestHead, RequestHeadReader
from interlace.server.http.responses import HttpError, error_response
from interlace.server.http.routes import RouteKind

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


#: What one read takes while no body is expected; larger bodies then go straight to the arena.
SCRATCH_BYTES: Final = 64 * 1024


class ServerState:
    """Limits, memory, handlers and connections of one server.

    ``placer`` is ``None`` on a server that has no inference routes.
    """

    def __init__(
        self,
        reader: RequestHeadReader,
        handlers: Mapping[RouteKind, RequestHandler],
        placer: BodyPlacer | None,
        budget: HeapBudget,
        limits: HttpLimits,
    ) -> None:
        self.read_head: Callable[[bytes], RequestHead] = reader.read
        self.handlers = handlers
        self.placer = placer
        self.whole_bytes = placer.whole_bytes if placer is not None else 0
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.connections: set[OpenConnection] = set()
        self.draining = False
        self.budget = budget
        self._idle = IdleConnections()
        self._last_refusal: tuple[Exception | None, bytes] = (None, b"")

    def enter(self, connection: OpenConnection) -> ConnectionAdmission:
        """Count a connection in; at the limit the longest idle one is closed for it.

        Those above the limit may only probe, and those above that get a refusal to read.
        """
        limits, over = self.limits, len(self.connections) + 1 - self.limits.connections
        made_room = over > 0 and self._idle.close_one(self.connections, self.loop.time())
        self.connections.add(connection)
        if over <= 0 or made_room:
            return ConnectionAdmission.FREE
        if over <= limits.probes:
            return ConnectionAdmission.PROBES
        beyond = over - limits.probes
        if beyond > limits.connections // 4 and connection.transport is not None:
            connection.transport.abort()  # too many even for a refusal
        return ConnectionAdmission.NONE

    def crowded(self, handshakes: int) -> bool:
        """Whether there are too many of them: they count as connections, but have some places
        even where all connections are taken.
        """
        limit = self.limits.connections
        return handshakes >= max(limit - len(self.connections), limit // 8)

    def full(self) -> ServeError:
        """The refusal of one connection too many."""
        limit = self.limits.connections
        return ServeError(Reason.NOT_READY, f"{limit} connections are open already")

    def refusal_bytes(self, error: HttpError | ServeError) -> bytes:
        """A refusal as a response; the same one is often sent many times in a row."""
        if error is not self._last_refusal[0]:
            self._last_refusal = (error, error_response(error))
        return self._last_refusal[1]

    def heap_body(self, head: RequestHead) -> HeapBody | ChunkedBody:
        """Where a body is received that does not go straight to the arena."""
        if head.length == CHUNKED:
            binary = head.json_length >= 0 or bool(head.encoding)
            return ChunkedBody(self.limits.of_body(head.route.kind, binary), self.budget)
        return HeapBody(head.length, self.budget)
