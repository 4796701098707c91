"""A controller that runs, beside nodes that answer at once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import Reason, ServeError
from interlace.core.node import (
    Assignment,
    ModelOutlook,
    Node,
    NodeDescription,
    NodeModel,
    NodeState,
    Revision,
)
from interlace.core.plan import Demand
from interlace.core.version import __version__
from interlace.fleet import service
from interlace.fleet.controller import Controller
from interlace.fleet.lease import LatestLease
from interlace.fleet.membership import KeptNodeChanges
from interlace.fleet.model_files import FleetFiles
from interlace.fleet.node_client import NodeOrders, clock_remark, read_description
from interlace.fleet.service import FleetService
from interlace.policy.catalog import resolve
from interlace.runtime.clock import WallClock
from interlace.runtime.plan_solver import InlinePlanSolver
from interlace.server.http.routes import HttpResponse
from interlace.testing.worlds import line_profile
from tests.fleet.test_controller import described

MODELS = {"m": NodeModel(Demand("m", 2000.0, 50.0), "digest", line_profile("m", 2.0, 1.0))}


@pytest.fixture(autouse=True)
def _haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything periodic is done ten times as often: nodes answer at once."""
    for name in ("_GATHER_S", "_LEASE_S", "_LOOK_S", "_MODELS_S"):
        monkeypatch.setattr(service, name, getattr(service, name) / 10.0)


class FakeNodes:
    """A directory and a reader in one; nodes do what they are told. ``told`` are orders by node."""

    def __init__(self, descriptions: Mapping[str, NodeDescription]) -> None:
        self.descriptions = dict(descriptions)
        self.states = {name: NodeState(one.began, 0, {}) for name, one in self.descriptions.items()}
        self.told: list[tuple[str, str]] = []
        self.orders: list[tuple[str, Any]] = []  #: what they were told, too
        self.ended: set[str] = set()
        self.speechless: set[str] = set()  #: that do not say what they are
        self.refusal = b""
        self.models = MODELS
        self.wanted: Collection[str] | None = None
        self.without_room: dict[str, str] = {}

    @property
    def nodes(self) -> list[Node]:
        return [Node(name, "127.0.0.1", 8000) for name in self.descriptions]

    def heard_lately(self) -> set[str]:
        return set(self.descriptions)

    def heard_ms(self) -> dict[str, float]:
        return dict.fromkeys(self.descriptions, self.now_ms())

    def plan_is_for(self, models: Collection[str] | None, unplaced: Mapping[str, str]) -> None:
        self.wanted, self.without_room = models, dict(unplaced)

    def refusing(self) -> set[str]:
        return self.ended

    def now_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000.0

    async def ask(
        self, node: str, method: str, path: str, body: bytes = b"", most_bytes: int = 1 << 30
    ) -> HttpResponse:
        if path == "/v2/node":
            while node in self.speechless:
                self.told.append((node, path))
                await asyncio.sleep(0.01)
            return HttpResponse(msgspec.json.encode(self.descriptions[node]))
        if path == "/v2/node/models":
            return HttpResponse(msgspec.msgpack.encode(self.models))
        if self.refusal:
            return HttpResponse(self.refusal, 401)
        self.told.append((node, path))
        order = msgspec.json.decode(body)
        self.orders.append((node, order))
        before = self.states[node]
        if path == "/v2/node/files":
            self.states[node] = replace(before, files=order["digest"])
        else:
            accepting = path != "/v2/node/drain"
            revision = Revision(*order["revision"])
            assert revision > Revision(*before.revision)
            self.states[node] = replace(before, revision=revision, accepting=accepting)
        return HttpResponse(b"{}")


class Stand:
    """A service, and its nodes."""

    def __init__(self, root: Path, nodes: Mapping[str, NodeDescription], plan_ms: float) -> None:
        self.nodes = FakeNodes(nodes)
        clock, system = WallClock(asyncio.get_running_loop()), resolve("interlace")

        def make(
            term: int,
            there: Mapping[str, NodeDescription],
            standing: Mapping[str, Assignment],
        ) -> Controller:
            return Controller(
                clock, system, lambda s: InlinePlanSolver(s, clock, plan_ms), term, there,
                standing=standing,
            )  # fmt: skip

        fakes: Any = self.nodes
        self.service = FleetService(
            fakes, fakes, NodeOrders(fakes), FleetFiles(root),
            lambda node: "127.0.0.1:8000", make, LatestLease(),
            KeptNodeChanges(None),
        )  # fmt: skip
        self.service.start()

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(30.0):
            while not what():
                for name, state in self.nodes.states.items():
                    self.service.heard(name, state)
                await asyncio.sleep(0.01)

    def serving(self) -> set[str]:
        """Nodes that carry out an assignment which is not empty."""
        nodes = self.service.status().nodes
        return {n for n, one in nodes.items() if one.assigned and one.assigned.models}


@asynccontextmanager
async def beside(
    root: Path, plan_ms: float = 0.0, **nodes: NodeDescription
) -> AsyncIterator[Stand]:
    stand = Stand(root, nodes, plan_ms)
    try:
        yield stand
    finally:
        stand.service.close()


async def test_a_node_is_drained_once_what_is_planned_without_it_stands(tmp_path: Path) -> None:
    async with beside(tmp_path, 200.0, a=node("a", 1), b=node("b", 2)) as stand:
        await stand.until(lambda: stand.serving() == {"a", "b"})
        stand.service.drain("a")
        controller = stand.service.controller
        assert controller is not None and controller.planning
        await stand.until(lambda: not stand.nodes.states["a"].accepting)
        assert not controller.planning


async def test_a_removed_node_is_not_called_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with beside(tmp_path, a=node("a", 1), b=node("b", 2)) as stand:
        await stand.until(lambda: stand.serving() == {"a", "b"})
        del stand.nodes.descriptions["a"], stand.nodes.states["a"]
        await stand.until(lambda: "node a was removed: its models" in caplog.text)
        stand.nodes.descriptions["a"], stand.nodes.states["a"] = node("a", 1), NodeState(1, 0, {})
        await stand.until(lambda: "a" in stand.serving())
        stand.nodes.ended.add("a")
        await stand.until(lambda: "node a is lost: its models" in caplog.text)


async def test_others_come_and_go_while_a_node_does_not_say_what_it_is(tmp_path: Path) -> None:
    async with beside(tmp_path, a=node("a", 1), b=node("b", 2)) as stand:
        await stand.until(lambda: stand.serving() == {"a", "b"})
        stand.nodes.speechless.add("b")
        stand.nodes.states["b"] = NodeState(3, 0, {})
        await stand.until(lambda: ("b", "/v2/node") in stand.nodes.told)
        stand.nodes.descriptions["c"] = node("c", 4)
        stand.nodes.states["c"] = NodeState(4, 0, {})
        await stand.until(lambda: "c" in stand.serving())
        stand.nodes.ended.add("a")
        await stand.until(lambda: stand.serving() <= {"b", "c"})
        stand.nodes.descriptions["b"] = node("b", 3)
        stand.nodes.speechless.clear()
        await stand.until(lambda: stand.nodes.states["b"].revision != (0, 0))
        assert stand.serving() == {"b", "c"} and not stand.service.problems


def node(name: str, began: int, version: str = __version__) -> NodeDescription:
    return replace(described(name, gpus=1, began=began), version=version)


async def test_a_drained_node_takes_nothing_once_its_models_stand_elsewhere(tmp_path: Path) -> None:
    async with beside(tmp_path, a=node("a", 1), b=node("b", 2)) as stand:
        await stand.until(lambda: stand.serving() == {"a", "b"})
        stand.service.drain("a")
        await stand.until(lambda: not stand.nodes.states["a"].accepting)
        orders = [path for name, path in stand.nodes.told if name == "a"]
        assert orders[-1] == "/v2/node/drain"
        assert stand.nodes.states["b"].accepting
        stand.service.undrain("a")
        await stand.until(lambda: bool(stand.nodes.states["a"].accepting))
        await stand.until(lambda: stand.serving() == {"a", "b"})


async def test_the_last_node_is_not_drained(tmp_path: Path) -> None:
    async with beside(tmp_path, a=node("a", 1)) as stand:
        await stand.until(lambda: stand.serving() == {"a"})
        with pytest.raises(ServeError, match="no other node than a serves: add one first"):
            stand.service.drain("a")
        with pytest.raises(ServeError, match="no node 'b'; there are a"):
            stand.service.drain("b")


async def test_all_nodes_serve_nothing_after_the_end(tmp_path: Path) -> None:
    async with beside(tmp_path, a=node("a", 1), b=node("b", 2)) as stand:
        await stand.until(lambda: stand.serving() == {"a", "b"})
        before = {name: state.revision for name, state in stand.nodes.states.items()}
        assert await stand.service.down() == []
        for name, state in stand.nodes.states.items():
            assert Revision(*state.revision) > Revision(*before[name])
        with pytest.raises(ServeError) as caught:
            stand.service.drain("a")
        assert caught.value.reason is Reason.NOT_READY


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (node("b", 2, version="0.0.1"), "runs version 0.0.1, this controller"),
        (node("b", 1), "is the same server as [ab]: name it once"),
        (replace(node("b", 2), assigned=False), "plans for itself: start it with --assigned"),
    ],
)
async def test_what_is_wrong_with_a_node_is_told_and_others_serve(
    tmp_path: Path, other: NodeDescription, problem: str
) -> None:
    async with beside(tmp_path, a=node("a", 1), b=other) as stand:
        await stand.until(lambda: bool(stand.serving()) and bool(stand.service.problems))
        problems = stand.service.problems
        assert len(problems) == 1 and re.search(problem, next(iter(problems.values())))
        assert len(stand.serving()) == 1


@pytest.mark.parametrize("first", ["a", "b"])
async def test_a_node_that_makes_its_answers_up_serves_nothing_beside_one_that_computes(
    tmp_path: Path, first: str
) -> None:
    async with beside(tmp_path, a=replace(node("a", 1), emulated=True), b=node("b", 2)) as stand:
        nodes = stand.nodes
        later = {name: nodes.descriptions.pop(name) for name in set(nodes.descriptions) - {first}}
        await stand.until(lambda: stand.serving() == {first})
        nodes.states[first] = replace(
            nodes.states[first], models={"m": ModelOutlook(5.0, 5.0, 1.0, 50.0)}
        )
        nodes.descriptions.update(later)
        await stand.until(lambda: stand.serving() == {"b"} and "a" in stand.service.problems)
        assert "while b computes: start it with --device cuda or cpu" in stand.service.problems["a"]
        if first == "a":
            emptied = [order for name, order in nodes.orders if name == "a"][-1]
            assert emptied["models"] == {}, "what it was told before the other came it lets go"
        nodes.ended.add("b")
        await stand.until(lambda: not stand.serving())
        assert stand.service.controller is not None and not stand.service.controller.nodes


async def test_who_asks_for_a_model_without_room_is_told_why(tmp_path: Path) -> None:
    async with beside(tmp_path, a=node("a", 1)) as stand:
        hasty = Demand("m", 2000.0, slo_ms=0.01)
        stand.nodes.models = {"m": replace(MODELS["m"], demand=hasty)}
        await stand.until(lambda: stand.nodes.without_room.keys() == {"m"})
        assert "0.01 ms" in stand.nodes.without_room["m"]


async def test_routers_hear_of_every_model_of_the_folder_before_it_is_served(
    tmp_path: Path,
) -> None:
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "config.pbtxt").write_text("")
    async with beside(tmp_path, a=node("a", 1)) as stand:
        await stand.until(lambda: stand.nodes.wanted is not None)
        assert set(stand.nodes.wanted or ()) == {"later"}


def test_a_clock_that_differs_is_told_and_the_node_serves() -> None:
    assert clock_remark(100.0, 99.9, 100.2) == clock_remark(None, 99.9, 100.2) == ""
    assert re.match("its clock is 20 s behind this .*NTP", clock_remark(80.0, 99.9, 100.1))
    assert re.match("its clock is 20 s ahead of this .*NTP", clock_remark(120.0, 99.9, 100.1))


async def test_a_refused_key_is_told(tmp_path: Path) -> None:
    async with beside(tmp_path, a=node("a", 1)) as stand:
        stand.nodes.refusal = b'{"error": "this server asks for its admin key for this"}'
        await stand.until(lambda: bool(stand.service.problems))
        assert "same --node-key-file" in stand.service.problems["a"]


async def test_what_would_be_planned_changes_nothing(tmp_path: Path) -> None:
    async with beside(tmp_path, a=node("a", 1), b=node("b", 2)) as stand:
        service, nodes = stand.service, stand.nodes
        both = {("a", "/v2/node/assignment"), ("b", "/v2/node/assignment")}
        await stand.until(lambda: both <= set(nodes.told))
        told = list(nodes.told)
        same = await service.plan({}, [])
        assert (same.loads, same.moves.go, same.moves.appear) == (0, 0, 0)
        assert not same.unserved_rows_per_s and not same.failure
        less = await service.plan({}, ["a"])
        assert not less.nodes["a"].models and less.nodes["a"].goes == ["m"]
        assert less.nodes["b"].models["m"] > 0.0
        more = await service.plan({"m": 1e9}, [])
        assert more.unserved_rows_per_s["m"] > 0.0 and more.reasons["m"]
        for asked, why in (
            (({"k": 1.0}, []), "no model 'k'"),
            (({}, ["c"]), "no node 'c'"),
            (({}, ["a", "b"]), "none is left"),
        ):
            with pytest.raises(ServeError, match=why):
                await service.plan(*asked)
        assert nodes.told == told


async def test_a_controller_that_breaks_gives_up_its_lease_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released: list[bool] = []
    broken: list[bool] = []

    async with beside(tmp_path, a=node("a", 1), b=node("b", 2)) as stand:
        stand.service.on_broken = lambda: broken.append(True)
        await stand.until(lambda: stand.serving() == {"a", "b"})

        async def look() -> None:
            raise RuntimeError("nobody thought of that")

        monkeypatch.setattr(LatestLease, "release", lambda lease: released.append(True))
        monkeypatch.setattr(stand.service._files, "look", look)
        await stand.until(lambda: bool(broken))
        assert released and stand.service.controller is None and stand.service.term == 0
        with pytest.raises(ServeError, match="does not command"):
            stand.service.drain("a")
    assert "this controller is broken" in caplog.text


@pytest.mark.parametrize(
    ("gpus", "words"), [(0, "has no accelerator"), (2, "two of one name")], ids=["none", "twice"]
)
async def test_a_node_of_odd_accelerators_is_told_of_and_the_others_serve(
    tmp_path: Path, gpus: int, words: str
) -> None:
    odd = node("b", 2)

    async with beside(tmp_path, a=node("a", 1), b=replace(odd, gpus=odd.gpus[:1] * gpus)) as stand:
        await stand.until(lambda: stand.serving() == {"a"} and "b" in stand.service.problems)
        assert words in stand.service.problems["b"]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        msgspec.json.encode(described("n", gpus=257)),
        b'{"gpus": 3}',
        b'{"gpus": [3]}',
        b'{"gpus": [{"links": 3}]}',
        b'{"gpus": {"a": 1}}',
        b'{"clock_s": "noon"}',
        b"[" * 100_000,
        b'{"began": ' + b"9" * 4300 + b"}",
        b'{"name": "\xff"}',
    ],
)
def test_what_is_no_description_is_one_kind_of_error(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_description(body)


@given(
    st.sampled_from(["began", "number", "revision", "wait_ms", "arrived"]),
    st.one_of(st.integers(max_value=-1), st.integers(min_value=10**20)),
)
def test_numbers_beyond_bounds_are_no_state(key: str, number: int) -> None:
    outlook = {"wait_ms": 1.0, "alone_ms": 1.0, "row_ms": 1.0, "slo_ms": 9.0, "arrived": 3}
    state = {"began": 1, "number": 2, "models": {"m": outlook}, "revision": [1, 2]}
    decoder = msgspec.json.Decoder(NodeState)
    assert decoder.decode(json.dumps(state)).revision == Revision(1, 2)
    changed = {**outlook, key: number} if key in outlook else outlook
    value = [number, 1] if key == "revision" else number
    wrong = {**state, "models": {"m": changed}} | ({} if key in outlook else {key: value})
    with pytest.raises(msgspec.MsgspecError):
        decoder.decode(json.dumps(wrong))
