"""Everything but inference over HTTP: routes onto the administration, answers as responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.server.administration.api import AdminApi
from interlace.server.api_keys import Access
from interlace.server.http.arena_body import ArenaBody
from interlace.server.http.compression import pack, unpack_small
from interlace.server.http.limits import HttpLimits
from interlace.server.http.request_head import RequestHead
from interlace.server.http.responses import head_of
from interlace.server.http.routes import AdminRequest, HttpResponse, Route, RouteKind
from interlace.server.internal_errors import InternalErrors
from interlace.server.tensor_json import MALFORMED

if TYPE_CHECKING:
    from interlace.server.http.connection import HttpConnection

PACK_BYTES: Final = 1024
METRICS_MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
_object: Final = msgspec.json.Decoder(dict[str, Any])

Act = Callable[[AdminRequest], object]


class AdminHandler:
    """Answers administrative requests, at once or from a task."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._faults = InternalErrors()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, connection: HttpConnection, head: RequestHead, body: ArenaBody | bytearray
    ) -> _Later | None:
        """Begin one exchange."""
        assert isinstance(body, bytearray)
        method = "GET" if head.method == "HEAD" else head.method
        try:
            answer = head.route.respond[method](AdminRequest(head.names, self._plain(head, body)))
        except ServeError as error:
            connection.fail(error)
            return None
        except Exception as error:
            connection.fail(self._faults.refusal(error, head.route.pattern))
            return None
        if isinstance(answer, HttpResponse):
            connection.respond(_response(head, answer))
            return None
        later = _Later(connection, head, self._faults)
        task = asyncio.ensure_future(later.finish(answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return later

    def _plain(self, head: RequestHead, body: bytearray) -> bytes:
        if not head.encoding:
            return bytes(body)
        limit = self._limits.of_body(head.route.kind, binary=False)
        plain = unpack_small(body, head.encoding, limit)
        if plain is None:
            text = f"the body unpacks to more than the limit of {limit} bytes"
            raise ServeError(Reason.TOO_LARGE, text)
        return plain


class _Later:
    """An answer that takes its time. A client that leaves does not stop what it asked for."""

    def __init__(
        self, connection: HttpConnection, head: RequestHead, faults: InternalErrors
    ) -> None:
        self._connection = connection
        self._head = head
        self._faults = faults
        self._gone = False

    def abandon(self) -> None:
        self._gone = True

    async def finish(self, answer: Awaitable[HttpResponse]) -> None:
        error: ServeError | None = None
        try:
            response = _response(self._head, await answer)
        except ServeError as found:
            error = found
        except Exception as fault:
            error = self._faults.refusal(fault, self._head.route.pattern)
        if self._gone:
            return
        if error is None:
            self._connection.respond(response)
        else:
            self._connection.fail(error)


def _response(head: RequestHead, answer: HttpResponse) -> bytes:
    body, headers = answer.body, answer.headers
    # tritonclient.http.aio names several codings in every request and unpacks only inference.
    wanted = head.accept_asked or answer.media == METRICS_MEDIA
    if head.accept and wanted and len(body) >= PACK_BYTES:
        body = pack([body], head.accept)
        headers += f"Content-Encoding: {head.accept}\r\n"
    start = head_of(answer.status, answer.media, len(body), headers)
    return start if head.method == "HEAD" else start + body


def _get(pattern: str, act: Act, access: Access = Access.USE) -> Route:
    return Route(pattern, respond={"GET": _as_json(act)}, access=access)


def _post(pattern: str, act: Act, access: Access = Access.USE) -> Route:
    return Route(pattern, respond={"POST": _as_json(act)}, access=access)


def _as_json(act: Act) -> Callable[[AdminRequest], HttpResponse]:
    def respond(query: AdminRequest) -> HttpResponse:
        result = act(query)
        if isinstance(result, HttpResponse):
            return result
        return HttpResponse() if result is None else HttpResponse(msgspec.json.encode(result))

    return respond


def fields(query: AdminRequest) -> Mapping[str, Any]:
    """The JSON object in a body; an empty body is an empty object.

    Raises:
        ServeError: it is no JSON object.
    """
    if not query.body.strip():
        return {}
    try:
        return _object.decode(query.body)
    except MALFORMED as error:
        raise ServeError(Reason.BAD_INPUT, f"failed to parse the request JSON: {error}") from error


def _field(given: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = given.get(name, default)
    if type(value) is not kind:
        raise ServeError(Reason.BAD_INPUT, f"'{name}' must be {kind.__name__}, got {value!r:.64}")
    return value


def admin_routes(admin: AdminApi) -> list[Route]:
    """Health, metadata, statistics, repository, shared memory and settings."""
    return [
        *health_routes(admin),
        *_model_routes(admin),
        *_repository_routes(admin),
        *_memory_routes(admin),
        *_setting_routes(admin),
    ]


def metrics_route(render: Callable[[], str]) -> Route:
    """The page that Prometheus reads."""
    return Route(
        "/metrics",
        respond={"GET": lambda query: HttpResponse(render().encode("ascii"), media=METRICS_MEDIA)},
    )


def health_routes(admin: AdminApi) -> list[Route]:
    """What probes ask."""

    def ready(query: AdminRequest) -> HttpResponse:
        if admin.ready():
            return HttpResponse(b'{"ready":true}')
        return HttpResponse(b'{"ready":false,"error":"the server is not ready"}', 503)

    def model_ready(query: AdminRequest) -> object:
        if admin.model_ready(*query.names):
            return {"name": query.names[0], "ready": True}
        body = {"error": "Model version not ready", "name": query.names[0], "ready": False}
        return HttpResponse(msgspec.json.encode(body), 400)

    return [
        _get("/", lambda query: {"name": "interlace", "live": True}, Access.PROBE),
        _get("/v2/health/live", lambda query: {"live": True}, Access.PROBE),
        _get("/v2/health/ready", ready, Access.PROBE),
        _get("/v2/models/*/ready", model_ready, Access.PROBE),
        _get("/v2/models/*/versions/*/ready", model_ready, Access.PROBE),
    ]


def _model_routes(admin: AdminApi) -> list[Route]:
    routes = [
        _get("/v2", lambda query: admin.server_metadata()),
        _get("/v2/models", lambda query: admin.models()),
        _get("/v2/models/stats", lambda query: admin.statistics()),
    ]
    for prefix in ("/v2/models/*", "/v2/models/*/versions/*"):
        routes += [
            _get(prefix, lambda query: admin.model_metadata(*query.names)),
            _get(f"{prefix}/config", lambda query: admin.model_config(*query.names)),
            _get(f"{prefix}/stats", lambda query: admin.statistics(*query.names)),
        ]
    return routes


def _repository_routes(admin: AdminApi) -> list[Route]:
    def index(query: AdminRequest) -> object:
        return admin.index(_field(fields(query), "ready", bool, False))

    async def load(query: AdminRequest) -> HttpResponse:
        await admin.load(query.names[-1], _field(fields(query), "parameters", dict, {}))
        return HttpResponse()

    async def unload(query: AdminRequest) -> HttpResponse:
        fields(query)
        await admin.unload(query.names[-1])
        return HttpResponse()

    routes = []
    for prefix in ("/v2/repository", "/v2/repository/*"):
        routes += [
            _post(f"{prefix}/index", index),
            Route(f"{prefix}/models/*/load", RouteKind.LOAD, {"POST": load}, Access.CHANGE),
            Route(f"{prefix}/models/*/unload", RouteKind.ADMIN, {"POST": unload}, Access.CHANGE),
        ]
    return routes


def _memory_routes(admin: AdminApi) -> list[Route]:
    regions = admin.regions

    def register(query: AdminRequest) -> None:
        given = fields(query)
        regions.register(
            query.names[0],
            _field(given, "key", str),
            _field(given, "offset", int, 0),
            _field(given, "byte_size", int),
        )

    system, cuda = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
    return [
        _get(f"{system}/status", lambda query: admin.system_memory_status()),
        _get(f"{system}/region/*/status", lambda query: admin.system_memory_status(*query.names)),
        _post(f"{system}/region/*/register", register, Access.CHANGE),
        _post(f"{system}/unregister", lambda query: regions.unregister(), Access.CHANGE),
        _post(
            f"{system}/region/*/unregister",
            lambda query: regions.unregister(*query.names),
            Access.CHANGE,
        ),
        _get(f"{cuda}/status", lambda query: admin.cuda_memory_status()),
        _get(f"{cuda}/region/*/status", lambda query: admin.cuda_memory_status(*query.names)),
        _post(f"{cuda}/region/*/register", lambda query: admin.cuda_memory_register(*query.names)),
        _post(f"{cuda}/unregister", lambda query: None),
        _post(f"{cuda}/region/*/unregister", lambda query: None),
    ]


def _setting_routes(admin: AdminApi) -> list[Route]:
    def trace(query: AdminRequest) -> object:
        model = query.names[0] if query.names else ""
        return admin.trace_settings(fields(query), model)

    def logs(query: AdminRequest) -> object:
        return admin.log_settings(fields(query))

    paths = [("/v2/logging", logs), ("/v2/trace/setting", trace)]
    paths += [(f"/v2/models/*{v}/trace/setting", trace) for v in ("", "/versions/*")]
    return [
        Route(path, respond={"GET": _as_json(act), "POST": _as_json(act)}) for path, act in paths
    ]
