"""Requests over HTTP, passed to one node after another until one answers or time is up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.core.errors import ServeError
from interlace.router.attempts import Forwarded
from interlace.router.directory import NodeDirectory, NodeLinks
from interlace.router.http.node_connections import PendingReply, ReplyHead
from interlace.server.http.bodies import ArenaBody, SegmentedBody
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.request_head import RequestHead
from interlace.server.limits import HeapBudget, HeapReservation
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
        return SegmentedBody(self.arena, head.length)

    def begin(
        self, writer: ResponseWriter, head: RequestHead, body: ArenaBody | bytearray
    ) -> ForwardedRequest:
        forwarded = ForwardedRequest(self.directory, writer, head, body)
        forwarded.ask_next()
        return forwarded

    def close(self) -> None:
        self.directory.close()


class ForwardedRequest(Forwarded):
    """One request over HTTP, and the node that has it now."""

    __slots__ = ("_blocks", "_head", "_nbytes", "_parts", "_pending", "_refusal", "_writer")

    def __init__(
        self,
        directory: NodeDirectory,
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
        super().__init__(directory, self._nbytes)
        self.model = head.names[0] if head.names else ""
        self._pending: PendingReply | None = None
        self._refusal: tuple[ReplyHead, bytes] | None = None

    def abandon(self) -> None:
        """The client is gone: close the connection to the node, which cancels the request there."""
        if self._pending is not None:
            self.withdraw()
        self._free()

    def replied(
        self, head: ReplyHead, body: bytes | memoryview, reserved: HeapReservation | None
    ) -> None:
        if head.status in _ELSEWHERE and not head.final:
            self._leave()
            if head.status != 404 or len(self._head.names) > 1:  # a version was asked for
                self._refusal, self.refused_before = (head, bytes(body)), True
            if reserved is not None:
                reserved.release()
            self.ask_next()
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
        self.lose(why, asked_in_vain=fresh)  # else it may just have closed an idle connection

    def too_large(self, error: ServeError) -> None:
        self._leave()
        self.fail(error)

    def most_bytes(self) -> int:
        return _REPLY_BYTES

    def send(self, links: NodeLinks, waited_ms: float) -> None:
        node, parts = links.http, self._parts
        start = node.sent_heads.head(self._head.raw, self._nbytes, waited_ms)
        if self._nbytes < _JOINED_BYTES:
            self._pending = node.send((start + parts[0],), self)
        else:
            self._pending = node.send((start, *parts), self)

    def withdraw(self) -> None:
        assert self._pending is not None
        self._pending.cancel()
        self._leave()

    def pass_refusal(self) -> None:
        assert self._refusal is not None
        head, body = self._refusal
        self._free()
        self._writer.respond(head.start + body)

    def fail(self, error: ServeError) -> None:
        self._free()
        self._writer.fail(error)

    def _leave(self) -> NodeLinks:
        """The node has nothing of this request any more; the links to it."""
        links, pending = self.links, self._pending
        assert links is not None and pending is not None
        self._pending = None
        links.http.ended(pending)
        return links

    def _free(self) -> None:
        self.end()
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.free()
