"""Administrative requests over HTTP: their routes and the handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final

import msgspec

from interlace.core.errors import ServeError, bad_input
from interlace.server.administration.answers import AdminAnswers
from interlace.server.administration.methods import METHODS, AdminMethod
from interlace.server.compression import pack, unpack_within
from interlace.server.http.bodies import ArenaBody
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.limits import HttpLimits
from interlace.server.http.request_head import RequestHead
from interlace.server.http.responses import METRICS_MEDIA, head_of
from interlace.server.http.routes import AdminRequest, HttpResponse, Route, RouteKind, is_field
from interlace.server.internal_errors import InternalErrors
from interlace.server.tensor_json import MALFORMED

_object: Final = msgspec.json.Decoder(dict[str, Any])
#: Status and error of a probe that finds something not ready, by the end of the method's name.
_NOT_READY: Final = {
    "ServerReady": (503, "the server is not ready"),
    "ModelReady": (400, "Model version not ready"),
}


def admin_routes(api: AdminAnswers, methods: Sequence[AdminMethod[Any]] = METHODS) -> list[Route]:
    """One route for each path of each method."""
    return [_route(api, method, path) for method in methods for path in method.paths]


def metrics_route(render: Callable[[], str]) -> Route:
    """The page that Prometheus reads."""
    return Route(
        "/metrics",
        respond={"GET": lambda asked: HttpResponse(render().encode("ascii"), media=METRICS_MEDIA)},
    )


def _route(api: AdminAnswers, method: AdminMethod[Any], path: str) -> Route:
    names = [segment[1:-1] for segment in path.split("/") if is_field(segment)]

    def respond(asked: AdminRequest) -> HttpResponse | Awaitable[HttpResponse]:
        given = _object_in(asked.body) if "POST" in method.verbs else {}
        fields = {method.body: given} if method.body else given
        result = method.call(api, {**fields, **dict(zip(names, asked.names, strict=True))})
        return _later(result) if isawaitable(result) else _response(method, result)

    async def _later(result: Awaitable[object]) -> HttpResponse:
        return _response(method, await result)

    kind = RouteKind.LOAD if method.rpc.endswith("ModelLoad") else RouteKind.ADMIN
    return Route(path, kind, dict.fromkeys(method.verbs, respond), method.access)


def _response(method: AdminMethod[Any], result: object) -> HttpResponse:
    if result is None:
        return HttpResponse()
    status = 200
    if isinstance(result, dict) and result.get("ready") is False:
        status, error = _NOT_READY[method.rpc.rpartition("/")[2]]
        result = {**result, "error": error}
    return HttpResponse(msgspec.json.encode(result), status)


def _object_in(body: bytes) -> Mapping[str, Any]:
    """The JSON object in a body; an empty body is an empty object.

    Raises:
        ServeError: it is no JSON object.
    """
    if not body.strip():
        return {}
    try:
        return _object.decode(body)
    except MALFORMED as error:
        raise bad_input(f"failed to parse the request JSON: {error}") from error


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
