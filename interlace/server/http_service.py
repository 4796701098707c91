"""What all connections of one HTTP server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from interlace.core.errors import Reason, ServeError
from interlace.server.http_body import Budget, ChunkBody, HeapBody
from interlace.server.http_head import CHUNKED, Head, HeadReader
from interlace.server.http_limits import HttpLimits
from interlace.server.http_routes import Kind
from interlace.server.landing import Landing
from interlace.shm.arena import Arena

if TYPE_CHECKING:
    from interlace.server.http_connection import Connection

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
        self, connection: Connection, head: Head, body: Landing | bytes
    ) -> Exchange | None: ...


class Service:
    """Limits, memory, responders and connections of one server."""

    def __init__(
        self,
        reader: HeadReader,
        responders: Mapping[Kind, Responder],
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
        self.budget = Budget(limits.heap_bytes)
        self._arena = arena

    def body(self, head: Head) -> Landing | HeapBody | ChunkBody:
        """Where the body of a head is received.

        Raises:
            ServeError: it is too large, or there is no room.
        """
        limits, kind, length = self.limits, head.route.kind, head.length
        if kind is Kind.INFER and head.json_length >= 0:
            _check(head.json_length, limits.json_bytes, "JSON part of the request")
            _check(length, limits.body_bytes, "request body")
            if length >= 0 and not head.encoding and self._arena is not None:
                return Landing(self._arena, length, head.json_length)
        limit = self._limit_bytes(head)
        _check(length, limit, "request body")
        if length == CHUNKED:
            return ChunkBody(limit, self.budget)
        return HeapBody(length, self.budget)

    def _limit_bytes(self, head: Head) -> int:
        kind, limits = head.route.kind, self.limits
        if kind is Kind.ADMIN:
            return limits.admin_bytes
        if kind is Kind.LOAD or head.encoding or head.json_length >= 0:
            return limits.body_bytes
        return limits.json_bytes


def _check(nbytes: int, limit: int, what: str) -> None:
    if nbytes > limit:
        raise ServeError(
            Reason.TOO_LARGE,
            f"the {what} of {nbytes} bytes exceeds the limit of {limit} bytes"
            + ("; send large tensors as binary data" if "JSON" in what else ""),
        )
