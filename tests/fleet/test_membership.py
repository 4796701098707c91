"""Who is there: lists of nodes, and names that are resolved again and again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from interlace.core.errors import ServeError
from interlace.core.node import Node
from interlace.core.user_errors import InputError
from interlace.fleet.membership import (
    ChangingNodes,
    KeptNodeChanges,
    ListedNodes,
    Membership,
    NamedNodes,
    membership,
)
from interlace.fleet.orders import fleet_routes


class Zone:
    """Answers what it is given, one after another, and the last one for ever."""

    def __init__(self, *answers: list[str] | OSError) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Iterable[str]:
        assert (host, port) == ("nodes.test", 8000)
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


def seen(zone: Zone, changes: int) -> list[list[str]]:
    """Names of the nodes at each of the first changes."""

    async def follow() -> list[list[str]]:
        found: list[list[str]] = []
        watch = NamedNodes("nodes.test", 8000, 0.001, zone).watch()
        async with aclosing(watch):
            async for nodes in watch:
                found.append([node.name for node in nodes])
                if len(found) == changes:
                    break
        return found

    return asyncio.run(asyncio.wait_for(follow(), 10))


def first_of(membership: Membership) -> tuple[Node, ...]:
    """The nodes before any change."""

    async def first() -> tuple[Node, ...]:
        return await anext(aiter(membership.watch()))

    return asyncio.run(first())


def test_nodes_join_and_leave_with_their_name() -> None:
    zone = Zone(["10.0.0.1"], ["10.0.0.2", "10.0.0.1"], ["10.0.0.1", "10.0.0.2"], ["10.0.0.2"])
    assert seen(zone, 3) == [
        ["10.0.0.1:8000"],
        ["10.0.0.1:8000", "10.0.0.2:8000"],
        ["10.0.0.2:8000"],
    ]
    assert zone.asked == 4  # another order is no change


def test_while_nobody_resolves_the_name_the_nodes_stay() -> None:
    lost = OSError("Name or service not known")
    assert seen(Zone(lost, ["10.0.0.1"], lost, lost, ["10.0.0.1"], ["fd00::1"]), 2) == [
        ["10.0.0.1:8000"],
        ["[fd00::1]:8000"],
    ]


def test_the_system_resolves_unless_told_otherwise() -> None:
    assert first_of(NamedNodes("127.0.0.1", 8000)) == (
        Node("127.0.0.1:8000", "127.0.0.1", 8000, 8001),
    )


def test_on_a_command_line_nodes_are_a_list_or_one_name() -> None:
    listed = membership(["a=10.0.0.7:8010", "[fd00::1]:8000"])
    assert isinstance(listed, ListedNodes)
    assert str(listed) == "2 nodes"
    assert first_of(listed) == (
        Node("a", "10.0.0.7", 8010, 8011),
        Node("[fd00::1]:8000", "fd00::1", 8000, 8001),
    )
    named = membership(["dns:nodes.default.svc:8000"])
    assert isinstance(named, NamedNodes)
    assert str(named) == "the nodes of nodes.default.svc"


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["10.0.0.7"], "node '10.0.0.7': expected"),
        (["10.0.0.7:port"], "node '10.0.0.7:port': expected"),
        (["http://10.0.0.7:8000"], "node 'http://10.0.0.7:8000': expected"),
        (["rack/1=10.0.0.7:8000"], "node 'rack/1=10.0.0.7:8000': expected"),
        (["dns:nodes"], "node 'dns:nodes': expected"),
        (["dns:nodes:8000", "a:8000"], "a service's name stands alone"),
        (["a=b:1", "a=c:1"], "node 'a' is named twice"),
        (["::1:8000"], r"stands in brackets, as in \[::1\]:8000"),
        (["a=[::1"], r"stands in brackets, as in"),
        (["[::1:8000"], r"stands in brackets, as in"),
        (["=10.0.0.7:80"], r"node '': '' must have 1 to 253"),
        (["..=10.0.0.7:80"], r"node '\.\.': '\.\.' must have 1 to 253"),
        (["a\r\nX-Admin: 1=10.0.0.7:80"], r"must have 1 to 253"),
        (["\x1b[2J=10.0.0.7:80"], r"must have 1 to 253"),
        (["a=10.0.0.7\r\nX: 1:80"], r"must have 1 to 253"),
        (["a=" + "b" * 254 + ":80"], r"must have 1 to 253"),
    ],
)
def test_what_names_no_nodes_is_refused_in_words(texts: list[str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        membership(texts)


A, B, C = (Node(name, "h", 8000 + 10 * n, 8001 + 10 * n) for n, name in enumerate("abc"))


def nodes_now(changes: KeptNodeChanges) -> tuple[Node, ...]:
    return first_of(ChangingNodes(ListedNodes((A, B)), changes))


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


async def test_orders_are_answered_in_few_words() -> None:
    fleet: Any = SimpleNamespace(drain=str, undrain=str, known=str)
    nodes = ChangingNodes(ListedNodes((A, B)), KeptNodeChanges(None))
    end: Any = None
    routes = {one.pattern: one for one in fleet_routes(lambda: fleet, nodes, end)}

    async def told(order: str, node: str) -> str:
        asked: Any = SimpleNamespace(body=json.dumps({"node": node}))
        answer: Any = routes[f"/v2/fleet/{order}"].respond["POST"](asked)
        return str(json.loads((await answer).body)["done"])

    assert await told("add", "c=h:8020") == "c added"
    assert await told("drain", "a") == "a drains: its models are loaded elsewhere"
    assert await told("undrain", "a") == "a is used again"
    assert await told("remove", "a") == "a removed: it keeps serving its assignment"


def test_a_file_that_is_no_such_thing_is_named(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text("{")
    with pytest.raises(InputError, match=r"nodes\.json: changes of nodes cannot be read"):
        KeptNodeChanges(tmp_path)


def test_a_node_that_was_kept_has_a_name_like_any_other(tmp_path: Path) -> None:
    kept = '{"added": [{"name": "a\\r\\nX: 1", "host": "h", "http_port": 80}]}'
    (tmp_path / "nodes.json").write_text(kept)
    with pytest.raises(InputError, match=r"nodes\.json: .* must have 1 to 253 letters"):
        KeptNodeChanges(tmp_path)
