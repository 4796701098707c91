"""Administrative requests over HTTP: their routes, those of a fleet's orders, and the handler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, Final, TypeVar

import msgspec

from interlace.core.errors import Reason, ServeError, bad_input
from interlace.core.node import Assignment, FilesOrder, NodeDescription, NodeModel, Revision
from interlace.server.administration.methods import METHODS, AdminAnswers, AdminMethod, AnswerTasks
from interlace.server.api_keys import Access
from interlace.server.compression import pack, unpack_within
from interlace.server.http.bodies import ArenaBody
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.request_head import RequestHead
from interlace.server.http.responses import (
    EVENTS_END,
    EVENTS_HEAD,
    METRICS_MEDIA,
    OCTETS,
    event,
    head_of,
)
from interlace.server.http.routes import (
    AdminRequest,
    EventSource,
    HttpResponse,
    Respond,
    Route,
    is_field,
)
from interlace.server.limits import HttpLimits, RouteKind
from interlace.server.tensor_json import MALFORMED

_Asked = TypeVar("_Asked")


class DrainOrder(msgspec.Struct, forbid_unknown_fields=True):
    """As ``Assignment``, with nothing to serve anew."""

    revision: Revision


def node_routes(
    described: Callable[[], NodeDescription],
    models: Callable[[], Mapping[str, NodeModel]],
    standing: Callable[[], Assignment | None],
    assign: Callable[[Assignment], Awaitable[Revision]],
    drain: Callable[[Revision], Revision],
    have: Callable[[FilesOrder], None],
) -> list[Route]:
    """What the node is and could serve, and three orders, which need the node key.

    Models are a MessagePack map of ``NodeModel``; an order is answered with its revision. What was
    told last can be asked for, by the next controller.
    """

    def described_to(asked: AdminRequest) -> HttpResponse:
        told = msgspec.to_builtins(described(), str_keys=True)
        return HttpResponse(msgspec.json.encode({**told, "clock_s": time.time()}))

    def at_hand(asked: AdminRequest) -> HttpResponse:
        return HttpResponse(msgspec.msgpack.encode(dict(models())), media=OCTETS)

    def told(asked: AdminRequest) -> HttpResponse:
        return HttpResponse(msgspec.json.encode(standing()))

    async def assigned(asked: AdminRequest) -> HttpResponse:
        return _taken(await assign(read_order(asked.body, Assignment)))

    def drained(asked: AdminRequest) -> HttpResponse:
        return _taken(drain(read_order(asked.body, DrainOrder).revision))

    def files(asked: AdminRequest) -> HttpResponse:
        have(read_order(asked.body, FilesOrder))
        return HttpResponse(b"{}")

    return [
        Route("/v2/node", respond={"GET": described_to}, title="What this node is"),
        Route("/v2/node/models", respond={"GET": at_hand}, title="Models that it could serve"),
        _order("files", {"POST": files}, "Fetch model files", FilesOrder),
        _order(
            "assignment",
            {"GET": told, "POST": assigned},
            "Its part of the fleet's plan",
            Assignment,
        ),
        _order("drain", {"POST": drained}, "Serve nothing anew", DrainOrder),
    ]


def _order(name: str, respond: Mapping[str, Respond], title: str, body: type) -> Route:
    kind = RouteKind.PLAN if body is Assignment else RouteKind.ADMIN
    return Route(f"/v2/node/{name}", kind, respond, Access.ORDER, title=title, body=body)


def read_order(body: bytes, kind: type[_Asked]) -> _Asked:
    """The order in a body.

    Raises:
        ServeError: BAD_INPUT, it is none.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise bad_input(f"failed to parse the {kind.__name__}: {error}") from error


def _taken(revision: Revision) -> HttpResponse:
    return HttpResponse(msgspec.json.encode({"revision": revision}))


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
        title="Metrics for Prometheus",
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
    verbs = dict.fromkeys(method.verbs, respond)
    body = None if method.body or "POST" not in verbs else method.request
    return Route(path, kind, verbs, method.access, title=method.title, body=body)


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
#: Streams of events that are open at a time.
_STREAMS: Final = 64


class AdminHandler:
    """Answers administrative requests."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._tasks = AnswerTasks()
        self._streams: set[EventStream] = set()

    def begin(
        self, writer: ResponseWriter, head: RequestHead, body: ArenaBody | bytearray
    ) -> AdminExchange:
        assert isinstance(body, bytearray), "only bodies of inferences are placed in the arena"
        exchange = AdminExchange(writer, head, self._streams)
        asked = partial(self._answer, head, body)
        self._tasks.run(head.route.pattern, asked, exchange.respond, exchange.fail)
        return exchange

    def end_streams(self) -> None:
        """End every stream of events: they have no end of their own."""
        for stream in tuple(self._streams):
            stream.end()

    def _answer(self, head: RequestHead, body: bytearray) -> HttpResponse | Awaitable[HttpResponse]:
        plain = bytes(body)
        if head.encoding:
            limit_bytes = self._limits.of_body(head.route.kind, binary=False)
            plain = unpack_within(body, head.encoding, limit_bytes)
        method = "GET" if head.method == "HEAD" else head.method
        return head.route.respond[method](AdminRequest(head.names, plain))


class AdminExchange:
    """One administrative request."""

    def __init__(
        self, writer: ResponseWriter, head: RequestHead, streams: set[EventStream]
    ) -> None:
        self._writer = writer
        self._head = head
        self._gone = False
        self._streams = streams
        self._stream: EventStream | None = None

    def abandon(self) -> None:
        self._gone = True
        if self._stream is not None:
            self._stream.close()

    def respond(self, answer: HttpResponse) -> None:
        """Respond, packed if the client takes that; or begin a stream of events.

        Raises:
            ServeError: OVERLOADED, there are as many streams as there may be.
        """
        head, body, headers = self._head, answer.body, answer.headers
        if answer.events is not None and head.method != "HEAD":
            self._stream = EventStream(self._writer, answer.events, self._streams)
            return
        # tritonclient.http.aio names several codings in every request and unpacks only inference.
        wanted = head.accept_asked or answer.media == METRICS_MEDIA
        if head.accept and wanted and len(body) >= PACK_BYTES:
            body = pack([body], head.accept)
            headers += f"Content-Encoding: {head.accept}\r\n"
        start = head_of(answer.status, answer.media, len(body), headers)
        if not self._gone:
            self._writer.respond(start if head.method == "HEAD" else start + body)

    def fail(self, error: ServeError) -> None:
        """Respond with a refusal."""
        if not self._gone:
            self._writer.fail(error)


class EventStream:
    """Events to one client. The next one is made when the last is taken and its time has come."""

    def __init__(
        self, writer: ResponseWriter, source: EventSource, streams: set[EventStream]
    ) -> None:
        """Send the first event, and be one of ``streams``.

        Raises:
            ServeError: OVERLOADED, there are as many as there may be.
        """
        if len(streams) >= _STREAMS:
            text = f"{_STREAMS} streams of events are open: close one"
            raise ServeError(Reason.OVERLOADED, text, retry_after_ms=1000.0)
        self._writer = writer
        self._source = source
        self._streams = streams
        self._timer: asyncio.TimerHandle | None = None
        first = event(source.latest())
        streams.add(self)
        writer.stream(EVENTS_HEAD + first, self._taken)

    def end(self) -> None:
        """End the response."""
        if self.close():
            self._writer.respond(EVENTS_END)

    def close(self) -> bool:
        """Make no more events; false if that was so already."""
        if self._timer is not None:
            self._timer.cancel()
        was = self in self._streams
        self._streams.discard(self)
        return was

    def _taken(self) -> None:
        if self in self._streams:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._source.every_s, self._next)

    def _next(self) -> None:
        try:
            data = event(self._source.latest())
        except Exception:
            self.end()
            raise
        self._writer.stream(data, self._taken)
