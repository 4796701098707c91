"""What all connections of one HTTP server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from interlace.core.errors import Reason, ServeError
from interlace.server.heap_budget import HeapBudget
from interlace.server.http.arena_body import ArenaBody
from interlace.server.http.chunked_coding import ChunkedBody
from interlace.server.http.connection_limit import ConnectionAdmission, IdleConnections
from interlace.server.http.heap_body import HeapBody
from interlace.server.http.limits import MIB, HttpLimits
from interlace.server.http.request_head import CHUNKED, RequestHead, RequestHeadReader
from interlace.server.http.responses import HttpError, error_response
from interlace.server.http.routes import RouteKind
from interlace.shm.arena import Arena

if TYPE_CHECKING:
    from interlace.server.http.connection import HttpConnection
    from interlace.server.http.inference_handler import InferenceHandler

#: What one read takes while no body is expected; larger bodies then go straight to the arena.
SCRATCH_BYTES: Final = 64 * 1024
#: How much of the arena is looked through at once: 2 GiB within a minute, 1 ms each at most.
TRIM_BYTES: Final = 16 * MIB


class Exchange(Protocol):
    """A request between its body and its response."""

    def abandon(self) -> None:
        """The client is gone: no response is wanted any more."""
        ...


class RequestHandler(Protocol):
    """Begins the exchange of one kind of request; it ends with a call of ``connection.respond``.

    A ``ArenaBody`` is the responder's to drop. Returns ``None`` if the exchange has ended already.
    """

    def begin(
        self, connection: HttpConnection, head: RequestHead, body: ArenaBody | bytearray
    ) -> Exchange | None: ...


class ServerState:
    """Limits, memory, handlers and connections of one server."""

    def __init__(
        self,
        reader: RequestHeadReader,
        handlers: Mapping[RouteKind, RequestHandler],
        door: InferenceHandler | None,
        arena: Arena | None,
        limits: HttpLimits,
        trims: bool = False,
    ) -> None:
        self.read_head: Callable[[bytes], RequestHead] = reader.read
        self.handlers = handlers
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.connections: set[HttpConnection] = set()
        self.draining = False
        self.budget = HeapBudget(limits.heap_bytes) if door is None else door.budget
        self._door = door
        self._trims = trims
        self._trimmed = 0  # how far, of the arena
        self._idle = IdleConnections()
        self._last_refusal: tuple[Exception | None, bytes] = (None, b"")
        self._arena = arena

    def enter(self, connection: HttpConnection) -> ConnectionAdmission:
        """Count a connection in; the longest idle one makes room where there is none.

        What is left of the room is then for probes, and for telling the others.
        """
        limits, over = self.limits, len(self.connections) + 1 - self.limits.connections
        made = over > 0 and self._idle.close_one(self.connections, self.loop.time())
        self.connections.add(connection)
        if over <= 0 or made:
            return ConnectionAdmission.FREE
        if over <= limits.probes:
            return ConnectionAdmission.PROBES
        beyond = over - limits.probes
        if beyond > limits.connections // 4 and connection.transport is not None:
            connection.transport.abort()  # too many even to tell them
        return ConnectionAdmission.NONE

    def full(self) -> ServeError:
        """The refusal of one connection too many."""
        limit = self.limits.connections
        return ServeError(Reason.NOT_READY, f"{limit} connections are open already")

    def landing(self, head: RequestHead, data: bytearray, start: int, end: int) -> ArenaBody:
        """Where a body goes that is received straight into the arena.

        What of it is here already is ``data[start:end]``.

        Raises:
            ServeError: the arena is full, no request of the model is as large, or it is known that
                the model has no time for it now.
        """
        assert self._arena is not None and self._door is not None, "inference has both"
        if head.json_length < 0 or head.length > MIB:
            self._door.large.check_length(head)
        refusal = self._known_refusal(self._door, head, data, start, end)
        if refusal is not None:
            raise refusal
        in_front = head.json_length >= 0 and not head.encoding
        return ArenaBody(self._arena, head.length, head.json_length if in_front else head.length)

    def trim(self) -> None:
        """Give memory back that no body uses: a part of the arena at a time, all of it in turn."""
        if not self._trims or self._arena is None:
            return
        start, size = self._trimmed, self._arena.size_bytes
        self._arena.trim(start, min(size, start + TRIM_BYTES))
        self._trimmed = start + TRIM_BYTES if start + TRIM_BYTES < size else 0

    @staticmethod
    def _known_refusal(
        door: InferenceHandler, head: RequestHead, data: bytearray, start: int, end: int
    ) -> ServeError | None:
        """Nothing is known where the JSON part is not all there yet, or packed."""
        stop = start + head.json_length
        if not start < stop <= end or head.encoding:
            return None
        if not door.plane.refusing:
            return None
        return door.known_refusal(head.names, bytes(memoryview(data)[start:stop]))

    def refusal_bytes(self, error: HttpError | ServeError) -> bytes:
        """A refusal as a response; the same one is often given many times on end."""
        if error is not self._last_refusal[0]:
            self._last_refusal = (error, error_response(error))
        return self._last_refusal[1]

    def body(self, head: RequestHead) -> HeapBody | ChunkedBody:
        """Where any other body is received."""
        if head.length == CHUNKED:
            binary = head.json_length >= 0 or bool(head.encoding)
            return ChunkedBody(self.limits.of_body(head.route.kind, binary), self.budget)
        return HeapBody(head.length, self.budget)
