"""What all connections of one HTTP server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from interlace.core.errors import Reason, ServeError
from interlace.server.http.body import Budget, ChunkBody, HeapBody
from interlace.server.http.head import CHUNKED, Head, HeadReader
from interlace.server.http.limits import MIB, HttpLimits
from interlace.server.http.routes import Kind
from interlace.server.landing import Landing
from interlace.shm.arena import Arena

if TYPE_CHECKING:
    from interlace.server.http.connection import Connection
    from interlace.server.http.door import InferDoor

#: What one read takes while no body is expected; larger bodies then go straight to the arena.
SCRATCH_BYTES: Final = 32 * 1024


class Exchange(Protocol):
    """A request between its body and its response."""

    def abandon(self) -> None:
        """The client is gone: no response is wanted any more."""
        ...


class Responder(Protocol):
    """Begins the exchange of one kind of request; it ends with a call of ``connection.respond``.

    A ``Landing`` is the responder's to drop. Returns ``None`` if the exchange has ended already.
    """

    def begin(
        self, connection: Connection, head: Head, body: Landing | bytearray
    ) -> Exchange | None: ...


class Service:
    """Limits, memory, responders and connections of one server."""

    def __init__(
        self,
        reader: HeadReader,
        responders: Mapping[Kind, Responder],
        door: InferDoor | None,
        arena: Arena | None,
        limits: HttpLimits,
    ) -> None:
        self.read_head: Callable[[bytes], Head] = reader.read
        self.responders = responders
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.connections: set[Connection] = set()
        self.draining = False
        self.budget = Budget(limits.heap_bytes) if door is None else door.budget
        self._door = door
        self._arena = arena

    def enter(self, connection: Connection) -> bool:
        """Count a connection in; whether there is room for it."""
        self.connections.add(connection)
        count, limit = len(self.connections), self.limits.connections
        if count > limit + limit // 4 and connection.transport is not None:
            connection.transport.abort()  # too many even to tell them
        return count <= limit

    def full(self) -> ServeError:
        """The refusal of one connection too many."""
        limit = self.limits.connections
        return ServeError(Reason.NOT_READY, f"{limit} connections are open already")

    def landing(self, head: Head) -> Landing:
        """Where a body goes that is received straight into the arena.

        Raises:
            ServeError: the arena is full, or no request of the model is as large.
        """
        assert self._arena is not None and self._door is not None, "inference has both"
        if head.json_length < 0 or head.length > MIB:
            self._door.large.check_length(head)
        in_front = head.json_length >= 0 and not head.encoding
        return Landing(self._arena, head.length, head.json_length if in_front else head.length)

    def body(self, head: Head) -> HeapBody | ChunkBody:
        """Where any other body is received."""
        if head.length == CHUNKED:
            binary = head.json_length >= 0 or bool(head.encoding)
            return ChunkBody(self.limits.of_body(head.route.kind, binary), self.budget)
        return HeapBody(head.length, self.budget)
