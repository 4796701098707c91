"""The description of routes: complete, true to what is answered, and without loose ends."""

import re
from typing import Any, cast

import pytest

from interlace.fleet.orders import fleet_routes
from interlace.server.http.admin_handler import node_routes
from interlace.server.http.openapi import described, with_description
from interlace.server.http.routes import Route, RouteTable
from interlace.server.http.server import all_routes
from interlace.server.page.routes import page_routes
from tests.server.stand import Stand
from tests.server.wire import exchange, request

#: Stands for what routes would call: only their table is looked at.
NOBODY = cast(Any, None)
MAIN = [*all_routes(NOBODY, NOBODY), *node_routes(*[NOBODY] * 6), *fleet_routes(*[NOBODY] * 3)]


@pytest.mark.parametrize("routes", [MAIN, page_routes({}, bytes, NOBODY)], ids=["main", "page"])
def test_every_route_is_described_and_every_description_has_a_route(routes: list[Route]) -> None:
    every = with_description(routes)
    told = described(every)
    table = RouteTable(every)
    methods = {route.pattern: set(route.methods) - {"HEAD"} for route in reversed(every)}
    found = {
        path: {verb.upper() for verb in item if verb != "parameters"}
        for path, item in told["paths"].items()
    }
    assert found == methods
    ids = []
    for path, item in told["paths"].items():
        named = [one["name"] for one in item.pop("parameters", ())]
        assert named == re.findall(r"\{(\w+)\}", path)
        match = table.match(re.sub(r"\{\w+\}", "x", path))
        assert match is not None and len(match[1]) == len(named)
        assert all(one["summary"] for one in item.values()), path
        ids += [one["operationId"] for one in item.values()]
    assert len(ids) == len(set(ids))
    schemas = told["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", str(told))) <= schemas.keys()


def test_bodies_are_those_that_are_read() -> None:
    told = described(MAIN)
    load = told["paths"]["/v2/repository/models/{model_name}/load"]["post"]["requestBody"]
    assert load["content"]["application/json"]["schema"]["properties"].keys() == {"parameters"}
    register = told["paths"]["/v2/systemsharedmemory/region/{name}/register"]["post"]
    schema = register["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["key", "byte_size"]
    assert told["components"]["schemas"]["InferenceBody"]["required"] == ["inputs"]
    assert {} not in told["paths"]["/v2"]["get"]["security"][1:]
    assert "security" not in told["paths"]["/v2/health/live"]["get"]


def test_a_server_describes_itself(http: Stand) -> None:
    with http.connect() as connection:
        told = exchange(connection, request("GET", "/openapi.json")).json
    assert told["openapi"].startswith("3.1") and "/openapi.json" in told["paths"]
    assert "/v2/models/{name}/infer" in told["paths"]
