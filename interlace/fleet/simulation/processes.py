"""Routers and the controller in virtual time: the live parts, wired over simulated connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Final
from urllib.parse import quote

from interlace.core.messages import PlanSolved, SolvePlan
from interlace.core.node import Assignment, Node, NodeDescription, NodeState
from interlace.core.plan import Demand
from interlace.fleet.controller import Controller
from interlace.fleet.lease import LatestLease
from interlace.fleet.membership import KeptNodeChanges
from interlace.fleet.model_files import FleetFiles
from interlace.fleet.node_client import NodeOrders
from interlace.fleet.service import FleetService
from interlace.fleet.simulation.node import SimulatedNode
from interlace.fleet.simulation.node_server import NUMBER_BYTES
from interlace.fleet.simulation.process import SimProcess
from interlace.fleet.simulation.scenario import FleetSimulation
from interlace.policy.base import System
from interlace.router.directory import NodeDirectory
from interlace.router.http.forwarding import ForwardedRequest
from interlace.router.http.reads import NodeReader
from interlace.router.polling import NodePoller
from interlace.routing.routes import Draw, Routes
from interlace.runtime.clock import Clock
from interlace.runtime.plan_solver import GiveUp, InlinePlanSolver, OnPlanned, PlanSolver
from interlace.server.http.exchange import ResponseWriter
from interlace.server.http.request_head import RequestHead, RequestHeadReader
from interlace.server.http.routes import Route, RouteTable
from interlace.server.limits import HeapBudget, HttpLimits, RouteKind

_INFER: Final = RouteTable([Route("/v2/models/{model}/infer", RouteKind.INFER)])


class RouterProcess:
    """A router: it polls nodes, and forwards requests to them."""

    def __init__(
        self,
        clock: Clock,
        there: Mapping[str, SimulatedNode],
        scenario: FleetSimulation,
        draw: Draw,
    ) -> None:
        self._scenario = scenario
        self._process = SimProcess(clock, lambda loop, host, make: there[host].connect(loop, make))
        self.run = self._process.loop.run
        self._limits = HttpLimits()
        self._reader = RequestHeadReader(_INFER, self._limits)
        self._heads: dict[str, RequestHead] = {}
        self.run(self._wire, [Node(name, name, 0) for name in there], draw)

    def forward(self, model: str, number: int, writer: ResponseWriter) -> None:
        """Take a request for a model; ``writer`` gets its response, once."""
        head = self._heads.get(model)
        if head is None:
            raw = (
                f"POST /v2/models/{quote(model, safe='')}/infer HTTP/1.1\r\nHost: router\r\n"
                f"Content-Length: {NUMBER_BYTES}\r\n\r\n"
            )
            head = self._heads[model] = self._reader.read(raw.encode())
        body = bytearray(number.to_bytes(NUMBER_BYTES))
        self.run(ForwardedRequest(self.directory, writer, head, body).ask_next)

    def _wire(self, nodes: Sequence[Node], draw: Draw) -> None:
        routes = Routes(self._scenario.limits, draw)
        budget = HeapBudget(self._limits.heap_bytes)
        self.directory = NodeDirectory(routes, self._process, budget)
        self._asks = NodeReader(self.directory, "")
        self.directory.follow(nodes)
        NodePoller(self.directory, self._asks, self._heard).follow()

    def _heard(self, node: str, state: NodeState) -> None:
        self.directory.heard(node, state)


class _NoFiles(FleetFiles):
    """A folder of models that is never read: nodes have their models at hand."""

    async def look(self) -> None:
        """Leave it as it is."""


class ControllerProcess(RouterProcess):
    """The controller of a fleet, with its first router."""

    def _wire(self, nodes: Sequence[Node], draw: Draw) -> None:
        self._first = self._scenario.plan
        self._asked_ms = -inf  # when the question was asked that was answered last
        self.plans = 0  #: that were made
        super()._wire(nodes, draw)
        self._service = FleetService(
            self.directory,
            self._asks,
            NodeOrders(self._asks),
            _NoFiles(Path()),
            lambda node: "",
            self._make,
            LatestLease(),
            KeptNodeChanges(None),
        )
        self._service.start()

    def _heard(self, node: str, state: NodeState) -> None:
        super()._heard(node, state)
        self._service.heard(node, state)

    def deploy(self, demand: Sequence[Demand]) -> None:
        """Plan for other rates of these models."""
        assert self._service.controller is not None
        kinds = {kind: self._scenario.models(demand, kind) for kind in self._scenario.belief}
        models = {
            one.model: {k: known[one.model] for k, known in kinds.items() if one.model in known}
            for one in demand
        }
        self.run(self._service.controller.deploy, models)

    def misses(self, node: str) -> bool:
        """Whether it has noticed that a node is lost."""
        silent = self.directory.routes.silent(self._process.now_ms())
        return node in self.directory.refusing() or any(one.node.name == node for one in silent)

    def follow(self, since_ms: float) -> bool:
        """Whether all nodes follow a plan that was asked for since then, with all models loaded."""
        controller = self._service.controller
        if controller is None or self._asked_ms < since_ms:
            return False
        told = [node for node in controller.nodes if controller.assignment(node) is not None]
        return all(map(self._service.follows, told))

    def _make(
        self, term: int, nodes: Mapping[str, NodeDescription], standing: Mapping[str, Assignment]
    ) -> Controller:
        asked = self._scenario
        return Controller(
            self._process, asked.system, self._solver, term, nodes, asked.epoch_ms, standing
        )

    def _solver(self, system: System) -> PlanSolver:
        clock = self._process

        def solve(question: SolvePlan, done: OnPlanned) -> GiveUp:
            asked_ms = clock.now_ms()

            def answered(solved: PlanSolved) -> None:
                done(solved)
                self._asked_ms = asked_ms
                self.plans += 1

            if self._first is None:
                return InlinePlanSolver(system, clock, self._scenario.plan_ms)(question, answered)
            solved, self._first = PlanSolved(question.ticket, self._first), None
            clock.call_soon(lambda: answered(solved))
            return lambda: None

        return solve
