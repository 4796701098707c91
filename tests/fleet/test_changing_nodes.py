"""What an operator changed of nodes outlives the controller."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from interlace.core.errors import ServeError
from interlace.core.node import Node
from interlace.core.user_errors import InputError
from interlace.fleet.changing_nodes import ChangingNodes, KeptNodeChanges
from interlace.fleet.membership import ListedNodes
from interlace.fleet.orders import fleet_routes

A, B, C = (Node(name, "h", 8000 + 10 * n, 8001 + 10 * n) for n, name in enumerate("abc"))


def nodes_now(changes: KeptNodeChanges) -> tuple[Node, ...]:
    async def first() -> tuple[Node, ...]:
        return await anext(ChangingNodes(ListedNodes((A, B)), changes).watch())

    return asyncio.run(first())


def test_the_next_controller_has_what_was_added_removed_and_drained(tmp_path: Path) -> None:
    before = KeptNodeChanges(tmp_path / "lease")
    nodes = ChangingNodes(ListedNodes((A, B)), before)
    nodes.add(C)
    nodes.remove("a")
    before.keep(replace(before.now, drained=frozenset("b")))
    after = KeptNodeChanges(tmp_path / "lease")
    assert nodes_now(after) == (B, C)
    assert after.now.drained == {"b"}


def test_a_controller_that_waits_learns_what_the_one_before_changed(tmp_path: Path) -> None:
    waits, commands = KeptNodeChanges(tmp_path), KeptNodeChanges(tmp_path)
    ChangingNodes(ListedNodes((A, B)), commands).remove("a")
    assert nodes_now(waits) == (A, B)
    ChangingNodes(ListedNodes((A, B)), waits).read()
    assert nodes_now(waits) == (B,)


def test_without_a_folder_nothing_is_kept() -> None:
    changes = KeptNodeChanges(None)
    ChangingNodes(ListedNodes((A, B)), changes).remove("a")
    assert nodes_now(changes) == (B,)
    assert nodes_now(KeptNodeChanges(None)) == (A, B)


def test_a_removed_node_can_be_added_again_and_no_other_under_its_name() -> None:
    changes = KeptNodeChanges(None)
    nodes = ChangingNodes(ListedNodes((A, B)), changes)
    nodes.add(C)
    with pytest.raises(ServeError, match="node 'c' is at h:8020: choose another name"):
        nodes.add(Node("c", "elsewhere", 8000))
    nodes.remove("c")
    nodes.add(C)
    assert nodes_now(changes) == (A, B, C)


def test_what_cannot_be_kept_does_not_hold(tmp_path: Path) -> None:
    changes = KeptNodeChanges(tmp_path / "lease")
    (tmp_path / "lease").write_text("no folder")
    with pytest.raises(ServeError, match=r"the order cannot be kept in .*nodes\.json"):
        ChangingNodes(ListedNodes((A, B)), changes).remove("a")
    assert nodes_now(changes) == (A, B)


def test_orders_are_answered_in_few_words() -> None:
    fleet: Any = SimpleNamespace(drain=str, undrain=str, known=str)
    nodes = ChangingNodes(ListedNodes((A, B)), KeptNodeChanges(None))
    end: Any = None
    routes = {one.pattern: one for one in fleet_routes(lambda: fleet, nodes, end)}

    async def told(order: str, node: str) -> str:
        asked: Any = SimpleNamespace(body=json.dumps({"node": node}))
        answer: Any = routes[f"/v2/fleet/{order}"].respond["POST"](asked)
        return str(json.loads((await answer).body)["done"])

    assert asyncio.run(told("add", "c=h:8020")) == "c added"
    assert asyncio.run(told("drain", "a")) == "a drains: its models are loaded elsewhere"
    assert asyncio.run(told("undrain", "a")) == "a is used again"
    assert asyncio.run(told("remove", "a")) == "a removed: it keeps serving its assignment"


def test_a_file_that_is_no_such_thing_is_named(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text("{")
    with pytest.raises(InputError, match=r"nodes\.json: changes of nodes cannot be read"):
        KeptNodeChanges(tmp_path)


def test_a_node_that_was_kept_has_a_name_like_any_other(tmp_path: Path) -> None:
    kept = '{"added": [{"name": "a\\r\\nX: 1", "host": "h", "http_port": 80}]}'
    (tmp_path / "nodes.json").write_text(kept)
    with pytest.raises(InputError, match=r"nodes\.json: .* must have 1 to 253 letters"):
        KeptNodeChanges(tmp_path)
