"""The routes by which a node is told what to serve."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from interlace.core.errors import bad_input
from interlace.core.node import Assignment, FilesOrder, NodeDescription, NodeModel, Revision
from interlace.server.api_keys import Access
from interlace.server.http.responses import OCTETS
from interlace.server.http.routes import AdminRequest, HttpResponse, Route, RouteKind

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
        return _taken(await assign(_read(asked.body, Assignment)))

    def drained(asked: AdminRequest) -> HttpResponse:
        return _taken(drain(_read(asked.body, DrainOrder).revision))

    def files(asked: AdminRequest) -> HttpResponse:
        have(_read(asked.body, FilesOrder))
        return HttpResponse(b"{}")

    return [
        Route("/v2/node", respond={"GET": described_to}),
        Route("/v2/node/models", respond={"GET": at_hand}),
        Route("/v2/node/files", respond={"POST": files}, access=Access.ORDER),
        Route(
            "/v2/node/assignment",
            RouteKind.PLAN,
            respond={"GET": told, "POST": assigned},
            access=Access.ORDER,
        ),
        Route("/v2/node/drain", respond={"POST": drained}, access=Access.ORDER),
    ]


def _read(body: bytes, kind: type[_Asked]) -> _Asked:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise bad_input(f"failed to parse the {kind.__name__}: {error}") from error


def _taken(revision: Revision) -> HttpResponse:
    return HttpResponse(msgspec.json.encode({"revision": revision}))
