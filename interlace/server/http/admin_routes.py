"""The HTTP routes of everything but inference, made from the table of administrative methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final

import msgspec

from interlace.core.errors import bad_input
from interlace.server.administration.answers import AdminAnswers
from interlace.server.administration.methods import METHODS, AdminMethod
from interlace.server.http.responses import METRICS_MEDIA
from interlace.server.http.routes import AdminRequest, HttpResponse, Route, RouteKind, is_field
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
