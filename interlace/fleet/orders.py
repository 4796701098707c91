"""What an operator tells a fleet: over HTTP, with the admin key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

import msgspec

from interlace.core.errors import bad_input
from interlace.core.plan import as_rows_per_s
from interlace.core.user_errors import InputError
from interlace.fleet.membership import ChangingNodes, parse_node
from interlace.fleet.service import FleetService
from interlace.server.api_keys import Access
from interlace.server.http.admin_handler import read_order
from interlace.server.http.routes import AdminRequest, HttpResponse, Respond, Route


class NodeOrder(msgspec.Struct, forbid_unknown_fields=True):
    """The node that an order is about."""

    node: str


class PlanQuestion(msgspec.Struct, forbid_unknown_fields=True):
    """Other requests/s of some models, and nodes to do without."""

    rates: dict[str, Annotated[float, msgspec.Meta(ge=0.0)]] = {}
    without: list[str] = []


def fleet_routes(
    service: Callable[[], FleetService], nodes: ChangingNodes, end: Callable[[], Awaitable[str]]
) -> list[Route]:
    """The fleet's state, and orders: ``{"node": NAME}`` (to add one: NAME=HOST:PORT), or nothing.

    An order is answered with a sentence. ``end`` follows the last one: what has been done then.
    """

    def status(asked: AdminRequest) -> HttpResponse:
        return HttpResponse(msgspec.json.encode(service().status()))

    async def drain(node: str) -> str:
        service().drain(node)
        return f"{node} drains: its models are loaded elsewhere"

    async def undrain(node: str) -> str:
        service().undrain(node)
        return f"{node} is used again"

    async def add(node: str) -> str:
        try:
            found = parse_node(node)
        except InputError as error:
            raise bad_input(str(error)) from error
        nodes.add(found)
        return f"{found.name} added"

    async def remove(node: str) -> str:
        service().known(node)
        nodes.remove(node)
        return f"{node} removed: it keeps serving its assignment"

    async def down(asked: AdminRequest) -> HttpResponse:
        left = await service().down()
        done = await end()
        told = f"; not told, since they did not answer: {', '.join(left)}" if left else ""
        return _said(f"{done}{told}")

    orders: Mapping[str, Callable[[str], Awaitable[str]]] = {
        "drain": drain, "undrain": undrain, "add": add, "remove": remove,
    }  # fmt: skip
    return [
        Route("/v2/fleet", respond={"GET": status}, title="State of the fleet"),
        *(
            _order(name, _about_one(do), f"{name.capitalize()} a node", NodeOrder)
            for name, do in orders.items()
        ),
        _order("plan", _plan_of(service), "What would be planned", PlanQuestion),
        _order("down", down, "Withdraw all, then end"),
    ]


def _order(name: str, respond: Respond, title: str, body: type | None = None) -> Route:
    path, access = f"/v2/fleet/{name}", Access.CHANGE
    return Route(path, respond={"POST": respond}, access=access, title=title, body=body)


def _plan_of(service: Callable[[], FleetService]) -> Respond:
    async def respond(asked: AdminRequest) -> HttpResponse:
        question = read_order(asked.body, PlanQuestion)
        rates = {model: as_rows_per_s(rate) for model, rate in question.rates.items()}
        return HttpResponse(msgspec.json.encode(await service().plan(rates, question.without)))

    return respond


def _about_one(do: Callable[[str], Awaitable[str]]) -> Respond:
    async def respond(asked: AdminRequest) -> HttpResponse:
        return _said(await do(read_order(asked.body, NodeOrder).node))

    return respond


def _said(text: str) -> HttpResponse:
    return HttpResponse(msgspec.json.encode({"done": text}))
