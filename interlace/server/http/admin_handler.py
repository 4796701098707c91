"""The handler of administrative requests over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from interlace.core.errors import ServeError
from interlace.server.compression import pack, unpack_within
from interlace.server.http.arena_body import ArenaBody
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.limits import HttpLimits
from interlace.server.http.request_head import RequestHead
from interlace.server.http.responses import METRICS_MEDIA, head_of
from interlace.server.http.routes import AdminRequest, HttpResponse
from interlace.server.internal_errors import InternalErrors

PACK_BYTES: Final = 1024


class AdminHandler:
    """Answers administrative requests, at once or from a task."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._errors = InternalErrors()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, writer: ResponseWriter, head: RequestHead, body: ArenaBody | bytearray
    ) -> AdminExchange | None:
        """Begin one exchange."""
        assert isinstance(body, bytearray), "only bodies of inferences are placed in the arena"
        exchange = AdminExchange(writer, head, self._errors)
        method = "GET" if head.method == "HEAD" else head.method
        try:
            plain = bytes(body)
            if head.encoding:
                limit_bytes = self._limits.of_body(head.route.kind, binary=False)
                plain = unpack_within(body, head.encoding, limit_bytes)
            answer = head.route.respond[method](AdminRequest(head.names, plain))
        except Exception as error:
            exchange.fail(error)
            return None
        if isinstance(answer, HttpResponse):
            exchange.respond(answer)
            return None
        task = asyncio.ensure_future(exchange.finish(answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return exchange


class AdminExchange:
    """One administrative request. A client that leaves does not stop what it asked for."""

    def __init__(self, writer: ResponseWriter, head: RequestHead, errors: InternalErrors) -> None:
        self._writer = writer
        self._head = head
        self._errors = errors
        self._gone = False

    def abandon(self) -> None:
        self._gone = True

    async def finish(self, answer: Awaitable[HttpResponse]) -> None:
        """Respond once the answer is there."""
        try:
            response = await answer
        except Exception as error:
            self.fail(error)
        else:
            self.respond(response)

    def respond(self, answer: HttpResponse) -> None:
        head, body, headers = self._head, answer.body, answer.headers
        # tritonclient.http.aio names several codings in every request and unpacks only inference.
        wanted = head.accept_asked or answer.media == METRICS_MEDIA
        if head.accept and wanted and len(body) >= PACK_BYTES:
            body = pack([body], head.accept)
            headers += f"Content-Encoding: {head.accept}\r\n"
        start = head_of(answer.status, answer.media, len(body), headers)
        if not self._gone:
            self._writer.respond(start if head.method == "HEAD" else start + body)

    def fail(self, error: Exception) -> None:
        """Respond with a refusal, or with an internal error."""
        if not isinstance(error, ServeError):
            error = self._errors.refusal(error, self._head.route.pattern)
        if not self._gone:
            self._writer.fail(error)
