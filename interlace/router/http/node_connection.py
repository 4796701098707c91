"""A kept-alive HTTP connection to a node: one request at a time, its response received whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from interlace.core.errors import ServeError
from interlace.router.http.passed_heads import ReplyHead, ReplyHeads
from interlace.server.heap_budget import HeapBudget, HeapReservation

_HEAD_BYTES_MAX: Final = 64 << 10


class ReplyTaker(Protocol):
    """Who sent a request: exactly one of the first three is called, once."""

    def replied(
        self, head: ReplyHead, body: bytes | memoryview, reserved: HeapReservation | None
    ) -> None:
        """The response is here, whole; ``reserved`` is the taker's to release."""
        ...

    def lost(self, why: str, fresh: bool) -> None:
        """There will be none. ``fresh`` is false on a connection that was kept from before."""
        ...

    def too_large(self, error: ServeError) -> None:
        """There is one, and no room for it."""
        ...

    def waits(self) -> bool:
        """Whether it waits on for a node that is silent."""
        ...

    def most_bytes(self) -> int:
        """The longest body that is taken; a node that announces more is lost to it."""
        ...


class NodeConnection(asyncio.Protocol):
    """Bytes to a node and back.

    A response of more than one read is gathered in memory that grows as it comes, from ``budget``.
    """

    __slots__ = ("_body", "_budget", "_head", "_heads", "_on_idle", "_reserved",
                 "_start", "_taker", "served", "transport")  # fmt: skip

    def __init__(
        self, heads: ReplyHeads, budget: HeapBudget, on_idle: Callable[[NodeConnection], None]
    ) -> None:
        """``on_idle`` is called when a response has come and the connection can be used again."""
        self.transport: asyncio.Transport | None = None  #: ``None`` once it is lost
        self.served = 0  #: responses received
        self._reserved: HeapReservation | None = None
        self._heads = heads
        self._budget = budget
        self._on_idle = on_idle
        self._taker: ReplyTaker | None = None
        self._start = b""  #: of a head that did not come in one piece
        self._head: ReplyHead | None = None
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def send(self, parts: Sequence[bytes | memoryview], taker: ReplyTaker) -> None:
        """Send a request; the connection is idle."""
        assert self.transport is not None and self._taker is None
        self._taker = taker
        self.transport.writelines(parts)

    def cancel(self) -> None:
        """No response is wanted any more: nobody is told of one."""
        self._taker = None
        self._abort()

    def data_received(self, data: bytes) -> None:
        if self._taker is None:
            self._abort()  # nothing was asked
        elif self._head is not None:
            self._take_body(self._head, data)
        else:
            self._take_head(self._start + data if self._start else data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._fail(str(exc) if exc else "it closed the connection")

    def _take_head(self, data: bytes) -> None:
        stop = data.find(b"\r\n\r\n")
        if stop < 0:
            self._start = data
            if len(data) > _HEAD_BYTES_MAX:
                self._break("its response has no end of head")
            return
        self._start = b""
        try:
            head = self._heads.read(data[: stop + 4])
        except ValueError as error:
            self._break(f"it answered with {error}")
            return
        rest = data[stop + 4 :]
        if len(rest) == head.length:
            self._finish(head, rest)
        elif len(rest) > head.length:
            self._break("it sent more than it announced")
        else:
            self._begin_body(head, rest)

    def _begin_body(self, head: ReplyHead, rest: bytes) -> None:
        assert self._taker is not None
        most_bytes = self._taker.most_bytes()
        if head.length > most_bytes:
            self._break(f"it answered with {head.length} bytes, more than {most_bytes}")
            return
        self._reserved = HeapReservation(self._budget)
        self._head, self._body = head, bytearray()
        self._take_body(head, rest)

    def _take_body(self, head: ReplyHead, data: bytes) -> None:
        received = len(self._body) + len(data)
        if received > head.length:
            self._break("it sent more than it announced")
            return
        assert self._reserved is not None
        try:
            self._reserved.resize(received)
        except ServeError as error:
            taker, self._taker = self._taker, None
            self._abort()
            if taker is not None:
                taker.too_large(error)
            return
        self._body += data
        if received == head.length:
            body, self._body, self._head = memoryview(self._body), bytearray(), None
            self._finish(head, body)

    def _finish(self, head: ReplyHead, body: bytes | memoryview) -> None:
        taker, self._taker = self._taker, None
        reserved, self._reserved = self._reserved, None
        self.served += 1
        transport = self.transport
        assert taker is not None and transport is not None
        # It refused before all of the body had gone: what is left must not follow.
        if head.closes or transport.get_write_buffer_size():
            transport.abort()
        else:
            self._on_idle(self)
        taker.replied(head, body, reserved)

    def _break(self, why: str) -> None:
        self._fail(why)
        self._abort()

    def _fail(self, why: str) -> None:
        taker, self._taker = self._taker, None
        self._release()
        if taker is not None:
            taker.lost(why, self.served == 0)

    def _release(self) -> None:
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            reserved.release()

    def _abort(self) -> None:
        self._release()
        if self.transport is not None:
            self.transport.abort()
