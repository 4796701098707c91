"""Requests over HTTP, passed to one node after another until one answers or time is up."""

from __future__ import annotations

from typing import Final

from interlace.core.errors import ServeError
from interlace.router.directory import NodeDirectory
from interlace.router.http.node_connections import NodeConnections, PendingReply
from interlace.router.http.passed_heads import PassedHeads, ReplyHead
from interlace.server.heap_budget import HeapBudget, HeapReservation
from interlace.server.http.arena_body import ArenaBody
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.request_head import RequestHead
from interlace.shm.arena import Arena

#: What a node says that another one may see otherwise: overloaded, not ready, not there (any more).
_ELSEWHERE: Final = frozenset((404, 429, 503))


class Forwarder:
    """Places bodies in the arena, and passes requests on as they are."""

    def __init__(
        self,
        directory: NodeDirectory,
        arena: Arena,
        budget: HeapBudget,
    ) -> None:
        """``budget`` bounds the bodies that do not lie in the arena."""
        self.directory = directory
        self.arena = arena
        self.budget = budget
        self.heads = PassedHeads()

    def place(self, head: RequestHead, data: bytearray, start: int, end: int) -> ArenaBody:
        """Where a body is received.

        Raises:
            ServeError: the arena is full.
        """
        return ArenaBody(self.arena, head.length, 0)

    def begin(
        self, writer: ResponseWriter, head: RequestHead, body: ArenaBody | bytearray
    ) -> Forwarded:
        """Begin to pass one request on."""
        forwarded = Forwarded(self, writer, head, body)
        forwarded.start()
        return forwarded

    def close(self) -> None:
        """Close the connections to nodes."""
        self.directory.close()


class Forwarded:
    """One request, and the node that has it now."""

    __slots__ = ("_blocks", "_body", "_connections", "_forwarder", "_head", "_model", "_pending",
                 "_refusal", "_started_ms", "_tried", "_writer")  # fmt: skip

    def __init__(
        self,
        forwarder: Forwarder,
        writer: ResponseWriter,
        head: RequestHead,
        body: ArenaBody | bytearray,
    ) -> None:
        self._forwarder = forwarder
        self._writer = writer
        self._head = head
        self._blocks = body.hand_over() if isinstance(body, ArenaBody) else None
        self._body = body.view if isinstance(body, ArenaBody) else memoryview(bytes(body))
        self._model = head.names[0] if head.names else ""
        self._started_ms = forwarder.directory.now_ms()
        self._tried: set[str] = set()
        self._connections: NodeConnections | None = None
        self._pending: PendingReply | None = None
        self._refusal: tuple[ReplyHead, bytes] | None = None

    def start(self) -> None:
        """Send it to the node that is predicted to answer first."""
        try:
            self._try(0.0)
        except ServeError as error:
            self._give_up(error, "")

    def abandon(self) -> None:
        """The client is gone: the node is told by the end of its connection."""
        if self._pending is not None:
            self._pending.cancel()
            self._leave()
        self._free()

    def replied(
        self, head: ReplyHead, body: bytes | memoryview, reserved: HeapReservation | None
    ) -> None:
        self._leave()
        if head.status in _ELSEWHERE:
            self._refusal = (head, bytes(body))
            if reserved is not None:
                reserved.release()
            self._again()
            return
        self._free()
        if reserved is None:
            self._writer.respond(head.start + body)
        else:
            self._writer.respond_parts(head.start, (body,), reserved.release)

    def lost(self, why: str, fresh: bool) -> None:
        node = self._leave()
        if self._connections is not None:
            self._connections.lost += 1
        if not fresh:  # it may just have closed a connection that was idle
            self._tried.discard(node)
        self._again(f"node {node!r} did not answer: {why}")

    def too_large(self, error: ServeError) -> None:
        self._leave()
        self._free()
        self._writer.fail(error)

    def _try(self, waited_ms: float) -> None:
        forwarder = self._forwarder
        connections = forwarder.directory.choose(self._model, self._tried, waited_ms)
        self._connections = connections
        self._tried.add(connections.node)
        head, body = self._head, self._body
        start = forwarder.heads.head(head.raw, connections.host_header, len(body), waited_ms)
        self._pending = connections.send((start, body) if body else (start,), self)
        forwarder.directory.sent(connections.node, self._model)

    def _again(self, why: str = "") -> None:
        """Try elsewhere; else answer with what the last node said, or with why there is nothing."""
        waited_ms = self._forwarder.directory.now_ms() - self._started_ms
        try:
            self._try(waited_ms)
        except ServeError as error:
            self._give_up(error, why)

    def _give_up(self, error: ServeError, why: str) -> None:
        self._free()
        if self._refusal is not None and not why:
            head, body = self._refusal
            self._writer.respond(head.start + body)
        else:
            detail = f"{why}; {error.detail}" if why else error.detail
            after_ms = error.retry_after_ms
            self._writer.fail(ServeError(error.reason, detail, retry_after_ms=after_ms))

    def _leave(self) -> str:
        """The node has nothing of this request any more; its name."""
        connections, pending = self._connections, self._pending
        assert connections is not None and pending is not None
        self._pending = None
        connections.ended(pending)
        return connections.node

    def _free(self) -> None:
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.free()
