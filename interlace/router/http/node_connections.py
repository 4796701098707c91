"""The HTTP connections to one node: kept alive, as many as are used at once, bounded."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Node
from interlace.router.http.node_connection import NodeConnection, ReplyTaker
from interlace.router.http.passed_heads import ReplyHeads, RequestHeads
from interlace.server.heap_budget import HeapBudget
from interlace.server.http.origins import loopback
from interlace.server.tls import FollowedContext

_LOG: Final = logging.getLogger(__name__)
#: Requests of one router that one node has at a time, at most.
_CONNECTIONS_MAX: Final = 1024
_CONNECT_S: Final = 0.3
_CONNECT_TLS_S: Final = 1.0  #: the node's own process answers a handshake
#: Shorter than a node keeps an idle connection, so that few are found closed.
_IDLE_S: Final = 60.0


class PendingReply:
    """A request on its way to a node; ``cancel`` once nobody waits for it."""

    __slots__ = ("_opening", "connection", "parts", "taker")

    def __init__(self, parts: Sequence[bytes | memoryview], taker: ReplyTaker) -> None:
        self.parts = parts
        self.taker = taker
        self.connection: NodeConnection | None = None
        self._opening: asyncio.Task[None] | None = None

    def open_with(self, opening: asyncio.Task[None]) -> None:
        """The connection is being made."""
        self._opening = opening

    def cancel(self) -> None:
        """End it without an answer."""
        if self.connection is not None:
            self.connection.cancel()
        elif self._opening is not None:
            self._opening.cancel()


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

        The memory of ``parts`` is left alone until the taker is told, or the request cancelled.

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
        pending.open_with(self._loop.create_task(self._open(pending)))
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
