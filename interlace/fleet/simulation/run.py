"""A whole fleet played in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

from interlace.core.messages import (
    Command,
    CreatePartition,
    Event,
    Load,
    PlanSolved,
    SolvePlan,
)
from interlace.core.request import Outcome
from interlace.fleet.simulation.controller import SimulatedService
from interlace.fleet.simulation.node import SimulatedNode
from interlace.fleet.simulation.router import RoutedRequest, Router
from interlace.fleet.simulation.scenario import FleetSimulation, Loss, OnProgress, RateChange
from interlace.policy.base import System
from interlace.runtime.clock import SimClock
from interlace.runtime.plan_solver import GiveUp, InlinePlanSolver, OnPlanned, PlanSolver
from interlace.runtime.runtime import Observer
from interlace.sim.run import gc_paused

_PARTS = 200
_SETTLING_MS = 10.0
_STEP_MS = 100.0
_HEARD_MS = 1000.0  #: in which routers hear that the first plan stands


@dataclass(frozen=True, slots=True)
class FleetRequest:
    """One request from its arrival at a router to its answer there; ``nodes`` in order of tries."""

    model: str
    arrived_ms: float
    answered_ms: float
    slo_ms: float
    outcome: Outcome
    nodes: tuple[str, ...]
    tried_ms: tuple[float, ...]

    @property
    def in_time(self) -> bool:
        """Whether it was answered within its SLO, the way included."""
        answered = self.outcome in (Outcome.OK, Outcome.LATE)
        return answered and self.answered_ms - self.arrived_ms <= self.slo_ms


@dataclass(slots=True)
class LossSeen:
    """What became of one loss, in ms of the run's clock; infinite for what did not happen.

    ``noticed_ms``: it is asked no more. ``replanned_ms``: every other node followed the plan
    without it, with all models loaded.
    """

    loss: Loss
    at_ms: float
    noticed_ms: float = inf
    replanned_ms: float = inf


@dataclass(slots=True)
class ChangeSeen:
    """Rates that were planned for anew, and when that plan stood on every node."""

    at_ms: float
    settled_ms: float = inf
    loads: int = 0  #: that it took


@dataclass(slots=True)
class FleetRecord:
    """A whole run. ``from_ms`` to ``until_ms`` is when the trace arrived: what is measured."""

    from_ms: float = 0.0
    until_ms: float = 0.0
    settled_ms: float = inf  #: when the first plan stood on every node
    requests: list[FleetRequest] = field(default_factory=list)
    losses: list[LossSeen] = field(default_factory=list)
    changes: list[ChangeSeen] = field(default_factory=list)
    loads: int = 0  #: models that were loaded into partitions
    cuts: int = 0  #: partitions that were made
    orders: int = 0  #: assignments that nodes took
    plans: int = 0


def simulate_fleet(
    scenario: FleetSimulation,
    on_progress: OnProgress = lambda part: None,
    observers: Mapping[str, Sequence[Observer]] | None = None,
) -> FleetRecord:
    """Play a scenario to its end, every request answered; equal scenarios give equal records.

    ``observers`` see what happens in the engines of nodes, by node.
    """
    run = _FleetRun(scenario, observers or {})
    length_ms = scenario.arrivals.seconds * 1000.0
    with gc_paused():
        run.warm()
        for part in range(1, _PARTS + 1):
            run.clock.run(run.record.from_ms + length_ms * part / _PARTS)
            on_progress(part / _PARTS)
        while run.unanswered:
            run.clock.run(run.clock.now_ms() + 1000.0)
    return run.ended()


class _Planning:
    """Answers the controller's questions, and says how far it has come."""

    def __init__(self, scenario: FleetSimulation, clock: SimClock) -> None:
        self._clock = clock
        self._plan_ms = scenario.plan_ms
        self._first = scenario.plan
        self.asked_ms = -inf  #: when the question was asked that was answered last
        self.plans = 0

    def solver(self, system: System) -> PlanSolver:
        """What plans by a system."""
        return partial(self._solve, InlinePlanSolver(system, self._clock, self._plan_ms))

    def _solve(self, solver: PlanSolver, question: SolvePlan, done: OnPlanned) -> GiveUp:
        asked_ms = self._clock.now_ms()

        def answered(solved: PlanSolved) -> None:
            done(solved)
            self.asked_ms = asked_ms
            self.plans += 1

        if self._first is None:
            return solver(question, answered)
        solved, self._first = PlanSolved(question.ticket, self._first), None
        self._clock.call_soon(lambda: answered(solved))
        return lambda: None


class _FleetRun:
    """Everything of a fleet on one clock."""

    def __init__(
        self, scenario: FleetSimulation, observers: Mapping[str, Sequence[Observer]]
    ) -> None:
        self._scenario = scenario
        self.clock = clock = SimClock()
        self.record = FleetRecord()
        self.unanswered = 0
        self._demand = {one.model: one for one in scenario.demand}
        self._nodes = {
            node.name: SimulatedNode(
                node, scenario, self._demand, clock,
                [self._count, *observers.get(node.name, ())],
            )
            for node in scenario.nodes
        }  # fmt: skip
        self._planning = _Planning(scenario, clock)
        self._service = SimulatedService(
            clock, scenario, self._planning.solver, self._nodes, self._noticed
        )
        self._routers = [
            Router(
                clock, self._nodes, scenario.limits, scenario.delays,
                scenario.draw(scenario.seed, index),
            )
            for index in range(scenario.routers)
        ]  # fmt: skip
        self._next = 0
        self._times_ms: list[float] = scenario.arrivals.times_ms.tolist()
        self._which: list[int] = scenario.arrivals.which.tolist()

    def warm(self) -> None:
        """Plan, have every node told and settled, and be where the trace begins."""
        self._service.start(self._scenario.demand)
        for router in self._routers:
            router.start()
        self._watch(self._standing)
        while self.record.settled_ms == inf and self.clock.now_ms() < self._scenario.warm_ms:
            self.clock.run(self.clock.now_ms() + _STEP_MS)
        self.clock.run(self.clock.now_ms() + _HEARD_MS)
        self.record.from_ms = start_ms = self.clock.now_ms()
        self.record.until_ms = start_ms + self._scenario.arrivals.seconds * 1000.0
        for loss in self._scenario.losses:
            self.clock.call_at(start_ms + loss.at_ms, self._losing(loss))
        for change in self._scenario.changes:
            self.clock.call_at(start_ms + change.at_ms, partial(self._change, change))
        if self._times_ms:
            self.clock.call_at(start_ms + self._times_ms[0], self._send)

    def ended(self) -> FleetRecord:
        """What happened."""
        self.record.orders, self.record.plans = self._service.told, self._planning.plans
        return self.record

    def _send(self) -> None:
        index, arrivals = self._next, self._scenario.arrivals
        self._next = index + 1
        if self._next < len(self._times_ms):
            self.clock.call_at(self.record.from_ms + self._times_ms[self._next], self._send)
        model = arrivals.models[self._which[index]]
        self.unanswered += 1
        router = self._routers[index % len(self._routers)]
        router.pass_on(RoutedRequest(model, self.clock.now_ms(), self._answered))

    def _answered(self, request: RoutedRequest, outcome: Outcome) -> None:
        self.unanswered -= 1
        self.record.requests.append(
            FleetRequest(
                request.model,
                request.arrived_ms,
                self.clock.now_ms(),
                self._demand[request.model].slo_ms,
                outcome,
                tuple(request.nodes),
                tuple(request.tried_ms),
            )
        )

    def _losing(self, loss: Loss) -> Callable[[], None]:
        def lose() -> None:
            node = self._nodes[loss.node]
            node.lose(loss.kind)
            now_ms = self.clock.now_ms()
            self.record.losses.append(LossSeen(loss, now_ms))
            if loss.back_ms < inf:
                self.clock.call_at(now_ms + loss.back_ms, lambda: node.come_back(loss.kind))

        return lose

    def _change(self, change: RateChange) -> None:
        now_ms = self.clock.now_ms()
        seen, loads = ChangeSeen(now_ms), self.record.loads
        self.record.changes.append(seen)
        self._service.deploy(change.demand)

        def stands() -> bool:
            if self._planning.asked_ms < now_ms or self._service.any_behind():
                return False
            seen.settled_ms, seen.loads = self.clock.now_ms(), self.record.loads - loads
            return True

        self._watch(stands)

    def _noticed(self, node: str, there: bool) -> None:
        if there:
            return
        now_ms = self.clock.now_ms()
        for seen in self.record.losses:
            if seen.loss.node == node and seen.noticed_ms == inf:
                seen.noticed_ms = now_ms
                self._watch(partial(self._replanned, seen))

    def _replanned(self, seen: LossSeen) -> bool:
        planned = self._planning.asked_ms >= seen.noticed_ms
        if not planned or self._service.any_behind():
            return False
        seen.replanned_ms = self.clock.now_ms()
        return True

    def _watch(self, reached: Callable[[], bool]) -> None:
        """Ask now and then until it is."""

        def look() -> None:
            if not reached():
                self.clock.call_at(self.clock.now_ms() + _SETTLING_MS, look)

        look()

    def _count(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        for command in commands:
            if type(command) is Load:
                self.record.loads += 1
            elif type(command) is CreatePartition:
                self.record.cuts += 1

    def _standing(self) -> bool:
        if self._planning.asked_ms < 0.0 or self._service.any_behind():
            return False
        self.record.settled_ms = self.clock.now_ms()
        return True
