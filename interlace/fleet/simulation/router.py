"""A router in virtual time: whom it asks is decided by ``routing.Routes``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from interlace.core.errors import Reason, ServeError
from interlace.core.node import Node, NodeState
from interlace.core.request import Outcome
from interlace.fleet.simulation.node import SimulatedNode
from interlace.fleet.simulation.scenario import Delays
from interlace.routing.routes import Draw, Routes, RoutingLimits
from interlace.runtime.clock import Clock

#: Refusals that another node may see otherwise: as ``router.http.forwarding`` has them by status.
_ELSEWHERE: Final = frozenset((Reason.UNKNOWN_MODEL, Reason.OVERLOADED, Reason.NOT_READY))


@dataclass(slots=True)
class RoutedRequest:
    """One request at a router; ``tried_ms`` are when it was sent to a node, ``nodes`` to which."""

    model: str
    arrived_ms: float
    answer: Callable[[RoutedRequest, Outcome], None]
    tried_ms: list[float] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    refused: bool = False  #: a node has refused it


class Router:
    """Sends requests to nodes, and elsewhere what they refuse or lose."""

    def __init__(
        self,
        clock: Clock,
        nodes: Mapping[str, SimulatedNode],
        limits: RoutingLimits,
        delays: Delays,
        draw: Draw,
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self._delay_ms = delays.request_ms
        self._routes = Routes(limits, draw)
        self._routes.follow([Node(name, name, 0) for name in nodes])
        self._poller = NodePoller(clock, nodes, self._routes.pause_ms, delays.news_ms, self._heard)
        self._pause_ms = limits.pause_ms(len(nodes))
        self._at: dict[str, dict[int, RoutedRequest]] = {name: {} for name in nodes}
        self._sent = 0

    def start(self) -> None:
        """Begin to ask nodes how they are."""
        self._poller.start()
        self._look()

    def pass_on(self, request: RoutedRequest) -> None:
        """Send a request to the node that is predicted to answer first; its answer comes once."""
        tried = frozenset(request.nodes)
        now_ms = self._clock.now_ms()
        waited_ms = now_ms - request.arrived_ms if tried else 0.0
        try:
            name = self._routes.choose(request.model, tried, waited_ms, now_ms).name
        except ServeError as error:
            refused = error.reason is Reason.OVERLOADED or request.refused
            request.answer(request, Outcome.REFUSED if refused else Outcome.FAILED)
            return
        self._routes.sent(name, request.model)
        request.nodes.append(name)
        request.tried_ms.append(now_ms)
        self._sent = number = self._sent + 1
        self._at[name][number] = request

        def answered(answer: tuple[Outcome, ServeError | None]) -> None:
            if self._at[name].pop(number, None) is None:
                return  # given up before
            outcome, error = answer
            if error is not None and error.reason in _ELSEWHERE:
                request.refused = True
                self.pass_on(request)
            else:
                request.answer(request, outcome)

        self._nodes[name].ask(
            self._delay_ms,
            lambda server, back: server.infer(
                request.model, waited_ms, lambda outcome, error: back((outcome, error))
            ),
            answered,
            lambda why: self._lost(name, number),
        )

    def _heard(self, node: str, state: NodeState) -> None:
        self._routes.heard(node, state, self._clock.now_ms())

    def _lost(self, node: str, number: int) -> None:
        request = self._at[node].pop(number, None)
        if request is not None:
            self.pass_on(request)

    def _look(self) -> None:
        """Give up what lost nodes have."""
        now_ms = self._clock.now_ms()
        for believed in self._routes.silent(now_ms):
            node = believed.node.name
            for number, request in list(self._at[node].items()):
                waited_ms = now_ms - request.arrived_ms
                if not self._routes.waits(node, request.model, waited_ms, now_ms):
                    self._lost(node, number)
        self._clock.call_at(now_ms + self._pause_ms, self._look)


_PATIENCE_MS: Final = 500.0


class NodePoller:
    """One question at a time for each node; who does not answer is asked again after a while."""

    def __init__(
        self,
        clock: Clock,
        nodes: Mapping[str, SimulatedNode],
        pause_ms: Callable[[str], float],
        delay_ms: float,
        heard: Callable[[str, NodeState], None],
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self._pause_ms = pause_ms
        self._delay_ms = delay_ms
        self._heard = heard
        self._asked = dict.fromkeys(nodes, 0)
        self._done = dict.fromkeys(nodes, 0)
        self.refusing: set[str] = set()  #: nodes whose process had ended when they were asked last

    def start(self) -> None:
        """Ask every node, one after the other within a pause."""
        for index, name in enumerate(self._nodes):
            self._later(name, self._pause_ms(name) * index / len(self._nodes))

    def _later(self, name: str, after_ms: float) -> None:
        self._clock.call_at(self._clock.now_ms() + after_ms, lambda: self._ask(name))

    def _ask(self, name: str) -> None:
        self._asked[name] = number = self._asked[name] + 1

        def answered(state: NodeState) -> None:
            self.refusing.discard(name)
            if self._done[name] < number:
                self._heard(name, state)
                self._end(name, number)

        def broken(why: str) -> None:
            self.refusing.add(name)
            given_up()

        def given_up() -> None:
            self._end(name, number)

        self._nodes[name].ask(
            self._delay_ms,
            lambda server, back: back(server.state()),
            answered,
            broken,
        )
        self._clock.call_at(self._clock.now_ms() + _PATIENCE_MS, given_up)

    def _end(self, name: str, number: int) -> None:
        """The question has ended, if it had not before."""
        if self._done[name] < number:
            self._done[name] = number
            self._later(name, self._pause_ms(name))
