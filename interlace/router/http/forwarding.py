"""Requests over HTTP, passed to one node after another until one answers or time is up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.core.errors import ServeError
from interlace.router.attempts import Attempts, joined
from interlace.router.directory import NodeDirectory, NodeLinks
from interlace.router.http.node_connections import PendingReply
from interlace.router.http.passed_heads import ReplyHead
from interlace.server.heap_budget import HeapBudget, HeapReservation
from interlace.server.http.bodies import ArenaBody, SegmentedBody
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.request_head import RequestHead
from interlace.shm.arena import Arena
from interlace.shm.blocks import ArenaBlocks

#: Up to this size a body is copied behind its head, which costs less than to send two parts.
_JOINED_BYTES: Final = 16 << 10
#: Longer than any reply; the budget bounds what has come of all of them.
_REPLY_BYTES: Final = 1 << 31
#: What a node says that another one may see otherwise: overloaded, not ready, not there (any more).
_ELSEWHERE: Final = frozenset((404, 429, 503))


class Forwarder:
    """Places bodies in the arena, and passes requests on as they are."""

    def __init__(self, directory: NodeDirectory, arena: Arena, budget: HeapBudget) -> None:
        """``budget`` bounds the bodies that do not lie in the arena."""
        self.directory = directory
        self.whole_bytes = _JOINED_BYTES
        self.arena = arena
        self.budget = budget

    def place(self, head: RequestHead, data: bytearray, start: int, end: int) -> ArenaBody:
        """Where a body is received.

        Raises:
            ServeError: the arena is full.
        """
        return SegmentedBody(self.arena, head.length)

    def begin(
        self, writer: ResponseWriter, head: RequestHead, body: ArenaBody | bytearray
    ) -> ForwardedRequest:
        """Begin to pass one request on."""
        forwarded = ForwardedRequest(self, writer, head, body)
        forwarded.start()
        return forwarded

    def close(self) -> None:
        """Close the connections to nodes."""
        self.directory.close()


class ForwardedRequest:
    """One request, and the node that has it now."""

    __slots__ = ("_attempts", "_blocks", "_head", "_nbytes", "_parts", "_pending", "_refusal",
                 "_writer")  # fmt: skip

    def __init__(
        self,
        forwarder: Forwarder,
        writer: ResponseWriter,
        head: RequestHead,
        body: ArenaBody | bytearray,
    ) -> None:
        self._writer = writer
        self._head = head
        self._blocks: ArenaBlocks | None = None
        if isinstance(body, SegmentedBody):
            self._parts: Sequence[memoryview] = body.views
            self._blocks = body.hand_over()
        else:
            assert isinstance(body, bytearray), "the placer places no other bodies"
            self._parts = (memoryview(body),)
        self._nbytes = sum(map(len, self._parts))
        model = head.names[0] if head.names else ""
        self._attempts = Attempts(forwarder.directory, model, self._nbytes, self.late)
        self._pending: PendingReply | None = None
        self._refusal: tuple[ReplyHead, bytes] | None = None

    def start(self) -> None:
        """Send it to the node that is predicted to answer first."""
        try:
            self._try()
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
        if head.status in _ELSEWHERE:
            self._leave()
            if head.status != 404 or len(self._head.names) > 1:  # a version was asked for
                self._refusal = (head, bytes(body))
            if reserved is not None:
                reserved.release()
            self._again()
            return
        # The caller first, who waits.
        if reserved is None:
            self._writer.respond(head.start + body)
        else:
            self._writer.respond_parts(head.start, (body,), reserved.release)
        self._free()
        self._leave().answered()

    def lost(self, why: str, fresh: bool) -> None:
        self._leave()
        # Else it may just have closed a connection that was idle.
        self._again(self._attempts.lost(why, asked_in_vain=fresh))

    def too_large(self, error: ServeError) -> None:
        self._leave()
        self._free()
        self._writer.fail(error)

    def late(self, error: ServeError) -> None:
        """Its time is over: the node is told by the end of its connection."""
        if self._pending is not None:
            self._pending.cancel()
        self.too_large(error)

    def waits(self) -> bool:
        return self._attempts.waits()

    def most_bytes(self) -> int:
        return _REPLY_BYTES

    def _try(self) -> None:
        waited_ms, parts = self._attempts.waited_ms, self._parts
        node = self._attempts.next().http
        start = node.sent_heads.head(self._head.raw, self._nbytes, waited_ms)
        if self._nbytes < _JOINED_BYTES:
            self._pending = node.send((start + parts[0],), self)
        else:
            self._pending = node.send((start, *parts), self)

    def _again(self, why: str = "") -> None:
        """Try elsewhere; else answer with what the last node said, or with why there is nothing."""
        try:
            self._try()
        except ServeError as error:
            self._give_up(error, why)

    def _give_up(self, error: ServeError, why: str) -> None:
        self._free()
        if self._refusal is not None and not why:
            head, body = self._refusal
            self._writer.respond(head.start + body)
        else:
            self._writer.fail(joined(why, error))

    def _leave(self) -> NodeLinks:
        """The node has nothing of this request any more; the links to it."""
        links, pending = self._attempts.links, self._pending
        assert links is not None and pending is not None
        self._pending = None
        links.http.ended(pending)
        return links

    def _free(self) -> None:
        self._attempts.end()
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.free()
