"""HTTP connections to one node: kept alive, one request at a time on each, bounded in number."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Node
from interlace.router.http.passed_heads import ChunkedEnd, ReplyHead, ReplyHeads, RequestHeads
from interlace.server.errors import HttpError
from interlace.server.http.request_head import CHUNKED, loopback
from interlace.server.limits import HeapBudget, HeapReservation
from interlace.server.tls import FollowedContext

_HEAD_BYTES_MAX: Final = 64 << 10


class ReplyTaker(Protocol):
    """Who sent a request: exactly one of the first three is called, once."""

    def replied(
        self, head: ReplyHead, body: bytes | memoryview, reserved: HeapReservation | None
    ) -> None:
        """The response is here, whole; ``reserved`` is the taker's to release."""
        ...

    def piece(self, head: ReplyHead, data: bytes, last: bool) -> bool:
        """Take a part of a response in chunks, as it came, instead; false if there is no use of it.

        The connection is to be paused while the next one cannot be taken.
        """
        ...

    def lost(self, why: str, fresh: bool) -> None:
        """There will be none, or no more of it.

        ``fresh`` is false on a connection that was kept from before.
        """
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

    __slots__ = ("_body", "_budget", "_chunks", "_head", "_heads", "_on_idle", "_reserved",
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
        self._chunks: ChunkedEnd | None = None  #: of a response in chunks
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def send(self, parts: Sequence[bytes | memoryview], taker: ReplyTaker) -> None:
        """Send a request; the connection is idle."""
        assert self.transport is not None and self._taker is None
        self._taker = taker
        self.transport.writelines(parts)

    def cancel(self) -> None:
        """Drop the response, and close the connection."""
        self._taker = None
        self._abort()

    def data_received(self, data: bytes) -> None:
        if self._taker is None:
            self._abort()  # nothing was asked
        elif self._head is not None and self._chunks is not None:
            self._take_chunks(self._head, self._chunks, data)
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
        if head.length == CHUNKED:
            self._head, self._chunks = head, ChunkedEnd()
            self._take_chunks(head, self._chunks, rest)
        elif len(rest) == head.length:
            self._finish(head, rest)
        elif len(rest) > head.length:
            self._break("it sent more than it announced")
        else:
            self._begin_body(head, rest)

    def pause(self, paused: bool) -> None:
        """Read nothing for a while, or go on."""
        if self.transport is not None and paused:
            self.transport.pause_reading()
        elif self.transport is not None:
            self.transport.resume_reading()

    def _take_chunks(self, head: ReplyHead, chunks: ChunkedEnd, data: bytes) -> None:
        taker = self._taker
        assert taker is not None
        try:
            last = chunks.feed(data)
        except (HttpError, ServeError) as error:
            self._break(f"it answered with {error}")
            return
        if last:
            self._taker = self._head = self._chunks = None
            self.served += 1
            if head.closes:
                self._abort()
            else:
                self._on_idle(self)
        if not taker.piece(head, data, last) and not last:
            self._break("it answered in chunks")

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


_LOG: Final = logging.getLogger(__name__)
#: Requests of one router that one node has at a time, at most.
_CONNECTIONS_MAX: Final = 1024
_CONNECT_S: Final = 0.3
_CONNECT_TLS_S: Final = 1.0  #: the node's own process answers a handshake
#: Shorter than a node keeps an idle connection, so that few are found closed.
_IDLE_S: Final = 60.0


class PendingReply:
    """A request on its way to a node; ``cancel`` once nobody waits for it."""

    __slots__ = ("connection", "opening", "parts", "taker")

    def __init__(self, parts: Sequence[bytes | memoryview], taker: ReplyTaker) -> None:
        self.parts = parts
        self.taker = taker
        self.connection: NodeConnection | None = None
        self.opening: asyncio.Task[None] | None = None  #: while the connection is made

    def cancel(self) -> None:
        """End it without an answer."""
        if self.connection is not None:
            self.connection.cancel()
        elif self.opening is not None:
            self.opening.cancel()


class NodeConnections:
    """Sends requests to one node, each over a connection of its own."""

    def __init__(self, node: Node, budget: HeapBudget, tls: FollowedContext | None = None) -> None:
        self.node = node.name
        self.private = tls is not None or loopback(node.host)  #: nobody reads what is sent
        self.host_header = f"{node.host}:{node.http_port}".encode()
        self.sent_heads = RequestHeads(self.host_header)
        self._loop = asyncio.get_running_loop()
        self._host = node.host
        self._port = node.http_port
        self._tls, self._tls_name = tls, node.tls_name if tls else None
        self._connect_s = _CONNECT_S if tls is None else _CONNECT_TLS_S
        self._failed = ""  # why TLS failed last
        self._budget = budget
        self._heads = ReplyHeads(node.name)
        self._idle: deque[tuple[float, NodeConnection]] = deque()
        self._busy: dict[PendingReply, None] = {}
        self.refused = False  #: nobody listened there when a connection was last asked for

    def send(self, parts: Sequence[bytes | memoryview], taker: ReplyTaker) -> PendingReply:
        """Send a request: now, or when a connection is made.

        The caller keeps ``parts`` unchanged until the taker is called, or the request cancelled.

        Raises:
            ServeError: OVERLOADED, the node has as many requests of this router as it may have.
        """
        if len(self._busy) >= _CONNECTIONS_MAX:
            raise ServeError(
                Reason.OVERLOADED,
                f"node {self.node!r} has {_CONNECTIONS_MAX} requests of this router",
                retry_after_ms=100.0,
            )
        pending = PendingReply(parts, taker)
        self._busy[pending] = None
        while self._idle:
            _, connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                pending.connection = connection
                connection.send(parts, taker)
                return pending
        pending.opening = self._loop.create_task(self._open(pending))
        return pending

    @property
    def in_flight(self) -> int:
        """Requests that have no reply yet."""
        return len(self._busy)

    def ended(self, pending: PendingReply) -> None:
        """A request has its reply, or wants none; once for each ``send``."""
        self._busy.pop(pending, None)

    def fail_all(self, why: str, hopeless: bool = False) -> None:
        """Give up every request that is there, or the ``hopeless`` ones, and idle connections."""
        for pending in list(self._busy):
            if not (hopeless and pending.taker.waits()):
                pending.cancel()
                pending.taker.lost(why, True)
        self.close_idle(0.0)

    def close_idle(self, idle_s: float = _IDLE_S) -> None:
        """Close connections that have not been used for long."""
        before_s = self._loop.time() - idle_s
        while self._idle and self._idle[0][0] <= before_s:
            _, connection = self._idle.popleft()
            if connection.transport is not None:
                connection.transport.abort()  # nothing is owed: no farewell of TLS is waited for

    async def _open(self, pending: PendingReply) -> None:
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await self._loop.create_connection(
                    lambda: NodeConnection(self._heads, self._budget, self._on_idle),
                    self._host,
                    self._port,
                    ssl=None if self._tls is None else self._tls.now(),
                    server_hostname=self._tls_name,
                )
        except TimeoutError:
            pending.taker.lost(f"no connection within {self._connect_s * 1000:.0f} ms", True)
            return
        except OSError as error:
            self.refused = isinstance(error, ConnectionRefusedError)
            self._complain(error)
            pending.taker.lost(f"no connection: {error.strerror or error}", True)
            return
        self.refused, self._failed = False, ""
        pending.connection = connection
        connection.send(pending.parts, pending.taker)

    def _complain(self, error: OSError) -> None:
        """Say why there is no TLS with the node: once for each reason."""
        if self._tls is not None and not self.refused and str(error) != self._failed:
            self._failed = str(error)
            _LOG.warning("node %s: no TLS with it: %s", self.node, error)

    def _on_idle(self, connection: NodeConnection) -> None:
        self._idle.append((self._loop.time(), connection))
