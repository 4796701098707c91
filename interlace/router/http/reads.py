"""Reads of what nodes know: metadata, statistics, readiness, the index of all."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.router.directory import NodeDirectory
from interlace.router.http.node_connections import NodeConnections
from interlace.router.http.passed_heads import ReplyHead
from interlace.server.http.routes import HttpResponse
from interlace.server.limits import HeapReservation

_LOG: Final = logging.getLogger(__name__)
#: Longer than a node takes for digests of files that it never read before.
_PATIENCE_S: Final = 30.0
#: What a node says of thousands of models, with their profiles.
_ANSWER_BYTES: Final = 64 << 20


class _Taker:
    """A reply as a future."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.future: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()

    def replied(
        self, head: ReplyHead, body: bytes | memoryview, reserved: HeapReservation | None
    ) -> None:
        if reserved is not None:
            reserved.release()
        if not self.future.done():
            self.future.set_result(HttpResponse(bytes(body), head.status))

    def lost(self, why: str, fresh: bool) -> None:
        self.too_large(ServeError(Reason.NOT_READY, why))

    def too_large(self, error: ServeError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def waits(self) -> bool:
        return False

    def piece(self, head: ReplyHead, data: bytes, last: bool) -> bool:
        return False

    def most_bytes(self) -> int:
        return self._most_bytes


class NodeReader:
    """Small requests that a router makes itself."""

    def __init__(
        self,
        directory: NodeDirectory,
        key: str,
        patience_s: float = _PATIENCE_S,
        secret: bool = False,
    ) -> None:
        """``key`` is the one that nodes ask for; "" if they ask for none.

        A warning is logged, once, if a ``secret`` key goes out in clear text.
        """
        self._warns = secret
        self._directory = directory
        self._patience_s = patience_s
        self._key = f"X-API-Key: {key}\r\n".encode() if key else b""

    def request(
        self, node: str, method: str, path: str, body: bytes = b""
    ) -> tuple[NodeConnections, bytes]:
        """A request to that node as bytes, and the connections to send it over."""
        connections = self._directory.links(node).http
        if self._warns and not connections.private:
            self._warns = False
            _LOG.warning(
                "the node or admin key goes in clear text to node %s: start nodes with --tls-cert, "
                "and this process with --ca",
                node,
            )
        start = b"%b %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: %d\r\n\r\n" % (
            method.encode(),
            path.encode(),
            connections.host_header,
            self._key,
            len(body),
        )
        return connections, start + body

    async def ask(
        self,
        node: str,
        method: str,
        path: str,
        body: bytes = b"",
        most_bytes: int = _ANSWER_BYTES,
    ) -> HttpResponse:
        """What that node answers.

        Raises:
            ServeError: it did not answer, or with more than ``most_bytes``.
        """
        connections, request = self.request(node, method, path, body)
        taker = _Taker(most_bytes)
        pending = connections.send((request,), taker)
        try:
            async with asyncio.timeout(self._patience_s):
                return await taker.future
        except TimeoutError:
            pending.cancel()
            why = f"node {node!r} did not answer within {self._patience_s:g} s"
            raise ServeError(Reason.NOT_READY, why) from None
        except asyncio.CancelledError:
            pending.cancel()
            raise
        finally:
            connections.ended(pending)

    async def ask_any(self, model: str, path: str) -> HttpResponse:
        """What the first node answers that has the model ("": any), asked one after another.

        Raises:
            ServeError: none of them answered; why not.
        """
        tried: set[str] = set()
        while True:
            node = self._directory.choose(model, tried, 0.0).node
            tried.add(node)
            try:
                return await self.ask(node, "GET", path)
            except ServeError:
                continue
