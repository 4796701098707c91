"""Requests over HTTP, passed to one node after another until one answers or time is up."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.router.attempts import Forwarded
from interlace.router.directory import NodeDirectory, NodeLinks
from interlace.router.http.node_connections import PendingReply
from interlace.router.http.passed_heads import ReplyHead
from interlace.server.http.bodies import ArenaBody, SegmentedBody
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.request_head import RequestHead
from interlace.server.http.responses import EVENTS_END, event
from interlace.server.limits import HeapBudget, HeapReservation
from interlace.shm.arena import Arena
from interlace.shm.blocks import ArenaBlocks

#: Up to this size a body is copied behind its head, which costs less than to send two parts.
_JOINED_BYTES: Final = 16 << 10
#: Longer than any reply; the budget bounds what has come of all of them.
_REPLY_BYTES: Final = 1 << 31


_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_parameters: Final = msgspec.json.Decoder(dict[str, bool | int | float | str])
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
        if forwarded.model and self.directory.routes.stateful(forwarded.model):
            if head.encoding:
                text = "a compressed request of a sequence: send it uncompressed through a router"
                forwarded.fail(ServeError(Reason.UNSUPPORTED, text))
                return forwarded
            forwarded.read_sequence()
        forwarded.ask_next()
        return forwarded

    def close(self) -> None:
        self.directory.close()


class ForwardedRequest(Forwarded):
    """One request over HTTP, and the node that has it now."""

    __slots__ = (
        "_begun",
        "_blocks",
        "_full",
        "_head",
        "_nbytes",
        "_parts",
        "_pending",
        "_refusal",
        "_writer",
    )

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
        super().__init__(directory, self._nbytes, head.trace)
        self.model = head.names[0] if head.names else ""
        self._pending: PendingReply | None = None
        self._refusal: tuple[ReplyHead, bytes] | None = None
        self._begun = self._full = False  #: a response in chunks, and its client takes no more

    def read_sequence(self) -> None:
        """Find the id in the JSON part of the body; nodes refuse a request without one."""
        body, size = b"".join(self._parts), self._head.json_length
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            fields = _fields.decode(body[:size] if size >= 0 else body)
            parameters = _parameters.decode(fields.get("parameters", b"{}"))
            self.sequence = str(parameters.get("sequence_id", ""))

    def abandon(self) -> None:
        """The client is gone: close the connection to the node, which cancels the request there."""
        if self._pending is not None:
            self.withdraw()
        self._free("the client is gone")

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
        self._free(_said(head))
        self._leave().answered()

    def piece(self, head: ReplyHead, data: bytes, last: bool) -> bool:
        data, self._begun = (data if self._begun else head.start + data), True
        if last:
            self._writer.respond(data)
            self._free(_said(head))
            self._leave().answered()
            return True
        self.unbounded()  # while responses come
        self._full = True
        self._writer.stream(data, self._taken)
        if self._full and self._pending is not None and self._pending.connection is not None:
            self._pending.connection.pause(True)
        return True

    def _taken(self) -> None:
        self._full = False
        if self._pending is not None and self._pending.connection is not None:
            self._pending.connection.pause(False)

    def lost(self, why: str, fresh: bool) -> None:
        self._leave()
        if self._begun:  # the client has a part of it: no other node is asked
            error = f"the stream ends: the node did not go on: {why}"
            self._free(error)
            self._writer.respond(event(msgspec.json.encode({"error": error})) + EVENTS_END)
            return
        self.lose(why, asked_in_vain=fresh)  # else it may just have closed an idle connection

    def too_large(self, error: ServeError) -> None:
        self._leave()
        self.fail(error)

    def most_bytes(self) -> int:
        return _REPLY_BYTES

    def send(self, links: NodeLinks, waited_ms: float) -> None:
        node, parts = links.http, self._parts
        trace = None if self.span is None else self.trace
        start = node.sent_heads.head(self._head.raw, self._nbytes, waited_ms, trace)
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
        self._free(_said(head))
        self._writer.respond(head.start + body)

    def fail(self, error: ServeError) -> None:
        self._free(error.detail)
        self._writer.fail(error)

    def _leave(self) -> NodeLinks:
        """The node has nothing of this request any more; the links to it."""
        links, pending = self.links, self._pending
        assert links is not None and pending is not None
        self._pending = None
        links.http.ended(pending)
        return links

    def _free(self, error: str) -> None:
        self.end(error)
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.free()


def _said(head: ReplyHead) -> str:
    """The error that a node answered with, if it was one."""
    return "" if head.status < 400 else f"node answered {head.status}"
