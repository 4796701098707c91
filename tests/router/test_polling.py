"""Asking nodes how they are: over and over, and when they answer a request, ahead of time."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import msgspec
import pytest

from interlace.core.errors import ServeError
from interlace.core.node import ModelOutlook, NodeState
from interlace.router.directory import NodeDirectory
from interlace.router.http.reads import NodeReader
from interlace.router.polling import NodePoller
from interlace.routing.routes import RoutingLimits
from tests.router.scripted_node import Act, ScriptedNode, answers, silent
from tests.router.stand import Made, RouterStand
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

    def __init__(self, router: RouterStand) -> None:
        self.heard: list[str] = []
        self.router = router
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


#: Makes such a router of a node that acts so.
Polled = Callable[[RoutingLimits, list[Act]], tuple[Asked, ScriptedNode]]
SAYS = [answers(200, STATE)]


@pytest.fixture
def polled(made: Made) -> Iterator[Polled]:
    with ExitStack() as ends:

        def make(limits: RoutingLimits, acts: list[Act]) -> tuple[Asked, ScriptedNode]:
            router, (node,) = made(acts, limits=limits)
            asked = Asked(router)
            ends.callback(router.do, asked.poller.close)
            return asked, node

        yield make


def test_a_node_is_asked_over_and_over(polled: Polled) -> None:
    asked, node = polled(OFTEN, SAYS)
    wait_until(lambda: len(asked.heard) >= 40)
    assert asked.router.do(lambda: asked.directory.serves("m"))
    assert all(head.startswith(b"GET /v2/node/state ") for head in node.heads)


def test_a_node_that_answers_a_request_is_asked_if_its_turn_is_near(polled: Polled) -> None:
    asked, _ = polled(RARELY, SAYS)
    wait_until(lambda: asked.heard == ["a"])
    asked.answered(later_s=700.0)
    assert asked.router.do(lambda: asked.directory.links("a").in_flight) == 0, "not yet"
    asked.answered(later_s=900.0)
    wait_until(lambda: asked.heard == ["a", "a"])
    asked.answered(later_s=1000.0)
    assert asked.router.do(lambda: asked.directory.links("a").in_flight) == 0, "it has just said"


def test_one_question_at_a_time(polled: Polled) -> None:
    asked, node = polled(RARELY, [silent])
    wait_until(lambda: len(node.heads) == 1)
    asked.answered(later_s=0.0)
    asked.answered(later_s=10_000.0)
    assert asked.router.do(lambda: asked.directory.links("a").in_flight) == 1
    asked.router.do(asked.poller.close)
    assert asked.router.do(lambda: asked.directory.links("a").in_flight) == 0


def test_a_question_without_an_answer_is_asked_anew(polled: Polled) -> None:
    asked, _ = polled(OFTEN, [silent, *SAYS])
    wait_until(lambda: len(asked.heard) >= 2)


def test_a_node_that_leaves_is_asked_no_more(polled: Polled) -> None:
    asked, node = polled(OFTEN, SAYS)
    wait_until(lambda: len(asked.heard) >= 1)

    def leave() -> None:
        asked.directory.follow([])
        asked.poller.follow()

    asked.router.do(leave)
    before = len(node.heads)
    asked.router.wait(asyncio.sleep(0.1))
    assert len(node.heads) <= before + 1, "at most what was on its way"


def test_an_endless_state_takes_no_memory_of_requests(polled: Polled) -> None:
    def endless(connection: socket.socket, head: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n")
        with suppress(OSError):
            while True:
                connection.sendall(bytes(1 << 20))
        return False

    asked, node = polled(OFTEN, [endless])
    reader, budget = NodeReader(asked.directory, ""), asked.router.parts.forwarder.budget
    most_bytes = 0
    while len(node.heads) < 20:
        most_bytes = max(most_bytes, asked.router.do(lambda: budget.used_bytes))
    assert most_bytes == 0
    with pytest.raises(ServeError, match="it answered with 1099511627776 bytes, more than"):
        asked.router.wait(reader.ask("a", "GET", "/v2/node"))
