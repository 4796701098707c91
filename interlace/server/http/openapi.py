"""The OpenAPI description of a table of routes, at ``/openapi.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from interlace.core.version import __version__
from interlace.server.api_keys import Access
from interlace.server.http.request_json import InferenceBody
from interlace.server.http.responses import JSON, OCTETS
from interlace.server.http.routes import AdminRequest, HttpResponse, Route, is_field
from interlace.server.limits import RouteKind

_SCHEMAS: Final = "#/components/schemas/"
_TEMPLATE: Final = _SCHEMAS + "{name}"
_GENERATE: Final = {
    "type": "object",
    "description": "Inputs by name, as one element or nested arrays; id; parameters.",
    "additionalProperties": True,
}
_KEYS: Final = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
#: As ``error_response`` in ``interlace.server.http.responses`` writes it.
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "string"},
        "reason": {"type": "string"},
        "retry_after_ms": {"type": "number"},
        "late_ms": {"type": "number"},
    },
}


def with_description(routes: Sequence[Route]) -> list[Route]:
    """The routes, and one more that describes them and itself."""

    @cache
    def text() -> bytes:
        return msgspec.json.encode(described(every))

    def respond(asked: AdminRequest) -> HttpResponse:
        return HttpResponse(text())

    own = Route("/openapi.json", respond={"GET": respond}, title="This description")
    every = [*routes, own]
    return every


def described(routes: Sequence[Route]) -> dict[str, Any]:
    """An OpenAPI 3.1 document of these routes; the first of a path counts."""
    forms = {route.body for route in routes if route.body is not None}
    _, schemas = msgspec.json.schema_components(
        [InferenceBody, *sorted(forms, key=lambda form: form.__name__)], ref_template=_TEMPLATE
    )
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.pattern, _operations(route, schemas))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Interlace",
            "version": __version__,
            "description": "KServe v2 inference, administration and state of this server.",
        },
        "paths": paths,
        "components": {"schemas": {**schemas, "Error": _ERROR}, "securitySchemes": _KEYS},
    }


def _operations(route: Route, schemas: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if fields := _fields(route):
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in fields
        ]
    for method in route.methods:
        if method != "HEAD":  # as GET, wherever that is
            found[method.lower()] = _operation(route, method, schemas)
    return found


def _operation(route: Route, method: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    words = [part.strip("{}.") for part in route.pattern.split("/") if part]
    found: dict[str, Any] = {
        "operationId": "_".join((method.lower(), *words)),
        "summary": route.title,
        "responses": {
            "200": {"description": "The answer."},
            "default": {
                "description": "A refusal.",
                "content": {JSON: {"schema": {"$ref": _SCHEMAS + "Error"}}},
            },
        },
    }
    if method == "POST" and (content := _content(route, schemas)):
        found["requestBody"] = {"content": content}
    if route.access is not Access.PROBE:  # the empty one: a server without a key asks for none
        found["security"] = [{}, *({name: []} for name in _KEYS)]
        found["description"] = f"Needs the key to {route.access.name.lower()}, if there is one."
    return found


def _content(route: Route, schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    if route.kind is RouteKind.INFER:
        binary = {"schema": {"type": "string", "format": "binary"}}
        return {JSON: {"schema": {"$ref": _SCHEMAS + InferenceBody.__name__}}, OCTETS: binary}
    if route.kind is RouteKind.GENERATE:
        return {JSON: {"schema": _GENERATE}}
    if route.body is None:
        return {}
    form = schemas[route.body.__name__]
    given = form["properties"].keys() - set(_fields(route))
    if len(given) == len(form["properties"]):
        return {JSON: {"schema": {"$ref": _SCHEMAS + route.body.__name__}}}
    rest = {name: one for name, one in form["properties"].items() if name in given}
    required = [name for name in form.get("required", ()) if name in given]
    schema = {"type": "object", "properties": rest, "required": required}
    return {JSON: {"schema": schema}} if rest else {}


def _fields(route: Route) -> list[str]:
    return [part[1:-1] for part in route.pattern.split("/") if is_field(part)]
