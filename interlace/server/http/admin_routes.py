"""The HTTP paths of everything but inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from interlace.core.errors import Reason, ServeError
from interlace.server.administration.api import AdminApi
from interlace.server.api_keys import Access
from interlace.server.http.responses import METRICS_MEDIA
from interlace.server.http.routes import AdminRequest, HttpResponse, Route, RouteKind
from interlace.server.tensor_json import MALFORMED

_object: Final = msgspec.json.Decoder(dict[str, Any])

Act = Callable[[AdminRequest], object]


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
