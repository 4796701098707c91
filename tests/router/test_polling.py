"""Asking nodes how they are: over and over, and when they answer a request, ahead of time."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest

from interlace.core.errors import ServeError
from interlace.core.node import ModelOutlook, NodeState
from interlace.router.directory import NodeDirectory
from interlace.router.http.reads import NodeReader
from interlace.router.polling import NodePoller
from interlace.routing.routes import RoutingLimits
from tests.router.scripted_node import ScriptedNode, answers, silent
from tests.router.stand import RouterStand
from tests.server.fakes import wait_until

OUTLOOK = ModelOutlook(5.0, 5.0, 0.1, 50.0)
STATE = msgspec.json.encode(NodeState(1, 1, {"m": OUTLOOK}))
RARELY = RoutingLimits(every_ms=1000_000.0, rest_ms=1000_000.0)
OFTEN = RoutingLimits(
    silent_ms=60_000.0, lost_ms=60_000.0, every_ms=1.0, rest_ms=1.0, look_ms=60_000.0
)


class LaterLoop:
    """A loop's time, so much later."""

    def __init__(self, loop: asyncio.AbstractEventLoop, later_s: float) -> None:
        self._loop, self._later_s = loop, later_s

    def time(self) -> float:
        return self._loop.time() + self._later_s


class Asked:
    """A router that asks one node, and hears what it says."""

    def __init__(self, node: ScriptedNode, limits: RoutingLimits) -> None:
        self.heard: list[str] = []
        self.router = RouterStand({"a": node.port}, limits=limits)
        self.poller = self.router.do(self._make)
        self.router.do(self.poller.follow)

    @property
    def directory(self) -> NodeDirectory:
        return self.router.parts.directory

    def _make(self) -> NodePoller:
        def hears(name: str, state: NodeState) -> None:
            self.heard.append(name)
            self.directory.heard(name, state)

        return NodePoller(self.directory, NodeReader(self.directory, ""), hears)

    def answered(self, later_s: float) -> None:
        """The node answers a request, so much later."""

        def answer() -> None:
            self.poller.loop = LaterLoop(self.router.loop, later_s)
            self.directory.links("a").answered()

        self.router.do(answer)


@pytest.fixture
def node() -> Iterator[ScriptedNode]:
    node = ScriptedNode([answers(200, STATE)])
    yield node
    node.close()


def test_a_node_is_asked_over_and_over(node: ScriptedNode) -> None:
    asked = Asked(node, OFTEN)
    wait_until(lambda: len(asked.heard) >= 40)
    assert asked.router.do(lambda: asked.directory.serves("m"))
    assert all(head.startswith(b"GET /v2/node/state ") for head in node.heads)
    asked.router.do(asked.poller.close)
    asked.router.close()


def test_a_node_that_answers_a_request_is_asked_if_its_turn_is_near(node: ScriptedNode) -> None:
    asked = Asked(node, RARELY)
    wait_until(lambda: asked.heard == ["a"])
    asked.answered(later_s=700.0)
    assert asked.router.do(lambda: asked.directory.links("a").in_flight) == 0, "not yet"
    asked.answered(later_s=900.0)
    wait_until(lambda: asked.heard == ["a", "a"])
    asked.answered(later_s=1000.0)
    assert asked.router.do(lambda: asked.directory.links("a").in_flight) == 0, "it has just said"
    asked.router.do(asked.poller.close)
    asked.router.close()


def test_one_question_at_a_time() -> None:
    node = ScriptedNode([silent])
    asked = Asked(node, RARELY)
    wait_until(lambda: len(node.heads) == 1)
    asked.answered(later_s=0.0)
    asked.answered(later_s=10_000.0)
    assert asked.router.do(lambda: asked.directory.links("a").in_flight) == 1
    asked.router.do(asked.poller.close)
    assert asked.router.do(lambda: asked.directory.links("a").in_flight) == 0
    asked.router.close()
    node.close()


def test_a_question_without_an_answer_is_asked_anew() -> None:
    node = ScriptedNode([silent, answers(200, STATE)])
    asked = Asked(node, OFTEN)
    wait_until(lambda: len(asked.heard) >= 2)
    asked.router.do(asked.poller.close)
    asked.router.close()
    node.close()


def test_a_node_that_leaves_is_asked_no_more(node: ScriptedNode) -> None:
    asked = Asked(node, OFTEN)
    wait_until(lambda: len(asked.heard) >= 1)

    def leave() -> None:
        asked.directory.follow([])
        asked.poller.follow()

    asked.router.do(leave)
    before = len(node.heads)
    asked.router.wait(asyncio.sleep(0.1))
    assert len(node.heads) <= before + 1, "at most what was on its way"
    asked.router.do(asked.poller.close)
    asked.router.close()


def test_an_endless_state_takes_no_memory_of_requests() -> None:
    def endless(connection: socket.socket, head: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n")
        with suppress(OSError):
            while True:
                connection.sendall(bytes(1 << 20))
        return False

    node = ScriptedNode([endless])
    asked = Asked(node, OFTEN)
    reader, budget = NodeReader(asked.directory, ""), asked.router.parts.forwarder.budget
    most_bytes = 0
    while len(node.heads) < 20:
        most_bytes = max(most_bytes, asked.router.do(lambda: budget.used_bytes))
    assert most_bytes == 0
    with pytest.raises(ServeError, match="it answered with 1099511627776 bytes, more than"):
        asked.router.wait(reader.ask("a", "GET", "/v2/node"))
    asked.router.do(asked.poller.close)
    asked.router.close()
    node.close()
