"""The controller's surroundings in virtual time: it hears of nodes, and tells them their part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from interlace.core.node import Assignment, Node, NodeDescription, NodeModel, NodeState
from interlace.core.plan import Demand
from interlace.fleet.controller import Controller
from interlace.fleet.presence import Presence
from interlace.fleet.simulation.node import SimulatedNode
from interlace.fleet.simulation.router import NodePoller
from interlace.fleet.simulation.scenario import FleetSimulation
from interlace.policy.base import System
from interlace.routing.routes import Routes
from interlace.runtime.clock import Clock
from interlace.runtime.plan_solver import PlanSolver

#: As ``fleet.service`` has them: how often nodes are looked at, and told again what they refused.
_LOOK_MS: Final = 50.0
_AGAIN_MS: Final = 400.0
_PATIENCE_MS: Final = 500.0


class SimulatedService:
    """Does for ``fleet.controller`` what ``fleet.service`` does, by messages that take a while."""

    def __init__(
        self,
        clock: Clock,
        scenario: FleetSimulation,
        solver: Callable[[System], PlanSolver],
        nodes: Mapping[str, SimulatedNode],
        noticed: Callable[[str, bool], None],
    ) -> None:
        """``noticed`` gets each node that is found to be gone (false) or present (true)."""
        self._clock = clock
        self._nodes = nodes
        self._belief = scenario.belief
        self._delay_ms = scenario.delays.order_ms
        self._noticed = noticed
        described = {one.name: one for one in scenario.nodes}
        self.controller = Controller(
            clock, scenario.system, solver, 1, described, scenario.epoch_ms
        )
        self.controller.on_assignments = self._tell_all
        self._beliefs = Routes(scenario.limits, lambda nodes, model: nodes[0])
        self._beliefs.follow([Node(name, name, 0) for name in nodes])
        news_ms = scenario.delays.news_ms
        self._poller = NodePoller(clock, nodes, self._beliefs.pause_ms, news_ms, self._heard)
        self._states: dict[str, NodeState] = {}
        self._planned = dict.fromkeys(described)
        self._presence = Presence()
        self._suspected: set[str] = set()  # silent, or lost already
        self._asking: set[str] = set()
        self.told = 0  #: orders that nodes took

    def start(self, demand: Sequence[Demand]) -> None:
        """Plan for these models, and look after the nodes from now on."""
        self._poller.start()
        self.controller.start()
        self.deploy(demand)
        self._clock.call_at(self._clock.now_ms() + 1000.0, self._look)

    def deploy(self, demand: Sequence[Demand]) -> None:
        """Plan for these models, on every kind of accelerator where they are known."""
        self.controller.deploy(
            {
                one.model: {
                    kind: NodeModel(one, "", known[one.model])
                    for kind, known in self._belief.items()
                    if one.model in known
                }
                for one in demand
            }
        )

    def any_behind(self) -> bool:
        """Whether one that is planned for has yet to say that its newest part stands."""
        return any(map(self._behind, self._planned))

    def _behind(self, node: str) -> bool:
        assignment, state = self.controller.assignment(node), self._states.get(node)
        if assignment is None:
            return False
        return state is None or state.revision < assignment.revision or not state.settled

    def _heard(self, node: str, state: NodeState) -> None:
        self._beliefs.heard(node, state, self._clock.now_ms())
        self._states[node] = state
        self.controller.heard(node, state)
        self._tell(node)

    def _look(self) -> None:
        now_ms = self._clock.now_ms()
        there = {believed.node.name for believed in self._beliefs.present(now_ms)}
        heard_ms = {one.node.name: one.heard_ms for one in self._beliefs.nodes if one.heard_ms > 0}
        silent = self._poller.refusing | (heard_ms.keys() - there)
        for node in sorted(silent - self._suspected):
            self._noticed(node, False)
        self._suspected = silent
        lost = self._presence.lost(heard_ms, self._poller.refusing, now_ms)
        for node in sorted(self._planned.keys() & lost):
            del self._planned[node]
            self._states.pop(node, None)
            self.controller.left(node)
        for node in sorted(there - lost - self._planned.keys() - self._asking):
            self._describe(node)
        self._clock.call_at(now_ms + _LOOK_MS, self._look)

    def _describe(self, node: str) -> None:
        def answered(description: NodeDescription) -> None:
            self._asking.discard(node)
            if node in self._planned:
                return  # asked twice, since the first answer was late
            self._planned[node] = None
            self._noticed(node, True)
            self.controller.joined(node, description)

        self._asking.add(node)
        self._nodes[node].ask(
            self._delay_ms,
            lambda server, back: back(server.description),
            answered,
            lambda why: self._asking.discard(node),
        )
        self._forget_later(node)

    def _tell_all(self) -> None:
        for node in self._planned:
            self._tell(node)

    def _tell(self, node: str) -> None:
        """Give a node its assignment if it follows an older one."""
        state, assignment = self._states.get(node), self.controller.assignment(node)
        mark = f"{node}:told"
        if state is None or assignment is None or mark in self._asking:
            return
        if state.revision < assignment.revision:
            self._asking.add(mark)
            self._give(node, assignment, mark)

    def _give(self, node: str, assignment: Assignment, mark: str) -> None:
        def again() -> None:
            self._asking.discard(mark)

        def answered(taken: bool) -> None:
            self.told += taken
            if taken:
                again()
            else:
                self._clock.call_at(self._clock.now_ms() + _AGAIN_MS, again)

        self._nodes[node].ask(
            self._delay_ms,
            lambda server, back: back(server.assign(assignment)),
            answered,
            lambda why: again(),
        )
        self._forget_later(mark)

    def _forget_later(self, asked: str) -> None:
        """Ask again if there is no answer: of a node that hangs none comes."""
        at_ms = self._clock.now_ms() + _PATIENCE_MS
        self._clock.call_at(at_ms, lambda: self._asking.discard(asked))
