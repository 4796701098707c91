"""A whole fleet played in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

import numpy as np

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import Command, CreatePartition, Event, Load, PlanChanged
from interlace.core.request import Outcome
from interlace.fleet.simulation.node import SimulatedNode
from interlace.fleet.simulation.node_server import NUMBER_BYTES
from interlace.fleet.simulation.process import SimProcess
from interlace.fleet.simulation.processes import ControllerProcess, RouterProcess
from interlace.fleet.simulation.scenario import FleetSimulation, Loss, RateChange
from interlace.runtime.clock import SimClock
from interlace.runtime.runtime import Observer
from interlace.server.errors import HttpError
from interlace.sim.run import OnProgress, gc_paused

#: Without a handler of the caller's, warnings of the simulated processes are no output.
logging.getLogger("interlace").addHandler(logging.NullHandler())
_PARTS = 200
_LOOK_S = 0.01
_STEP_MS = 100.0
_HEARD_MS = 1000.0  #: in which routers hear that the first plan stands
_REFUSED: Final = frozenset((404, 429, 503))
_EXPIRED: Final = 504


@dataclass(slots=True)
class FleetRequest:
    """One request from its arrival at a router to its answer there; ``nodes`` in order of tries."""

    model: str
    arrived_ms: float
    slo_ms: float
    answered_ms: float = inf
    outcome: Outcome = Outcome.FAILED
    nodes: list[str] = field(default_factory=list)
    tried_ms: list[float] = field(default_factory=list)

    @property
    def in_time(self) -> bool:
        """Whether it was answered within its SLO, the way included."""
        return self.outcome is Outcome.OK


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
        while run.open:
            run.clock.run(run.clock.now_ms() + 1000.0)
    return run.ended()


class _Caller:
    """Whoever waits for the response to a request."""

    __slots__ = ("_answered", "_request")

    def __init__(
        self, request: FleetRequest, answered: Callable[[FleetRequest, Outcome], None]
    ) -> None:
        self._request, self._answered = request, answered

    def stream(self, piece: bytes, taken: Callable[[], None]) -> None:
        raise AssertionError("no simulated model streams")

    def respond(self, response: bytes) -> None:
        status = int(response[9:12])
        if status == 200:
            outcome = Outcome.OK
        elif status == _EXPIRED:
            outcome = Outcome.EXPIRED
        else:
            outcome = Outcome.REFUSED if status in _REFUSED else Outcome.FAILED
        self._answered(self._request, outcome)

    def respond_parts(
        self, start: bytes, parts: Sequence[bytes | memoryview], release: Callable[[], None]
    ) -> None:
        self.respond(start)
        release()

    def fail(self, error: ServeError | HttpError) -> None:
        refused = isinstance(error, ServeError) and error.reason is Reason.OVERLOADED
        self._answered(self._request, Outcome.REFUSED if refused else Outcome.FAILED)


class _FleetRun:
    """Everything of a fleet on one clock, and what happens to it."""

    def __init__(
        self, scenario: FleetSimulation, observers: Mapping[str, Sequence[Observer]]
    ) -> None:
        self._scenario = scenario
        self.clock = clock = SimClock()
        self.record = FleetRecord()
        self.open: dict[int, FleetRequest] = {}  #: requests that have no answer, by number
        demand, self._slos_ms = {one.model: one for one in scenario.demand}, scenario.slos_ms
        self._nodes = nodes = {
            one.name: SimulatedNode(
                one, scenario, demand, clock,
                [self._count, *observers.get(one.name, ())], self._sent,
            )
            for one in scenario.nodes
        }  # fmt: skip
        self._controller = ControllerProcess(
            clock, nodes, scenario, scenario.draw(scenario.seed, 0)
        )
        self._routers = [self._controller] + [
            RouterProcess(clock, nodes, scenario, scenario.draw(scenario.seed, number))
            for number in range(1, scenario.routers)
        ]
        self._world = SimProcess(clock).loop
        self._tasks: list[asyncio.Task[None]] = []
        self._next = 0
        self._times_ms: list[float] = scenario.arrivals.times_ms.tolist()
        self._which: list[int] = scenario.arrivals.which.tolist()

    def warm(self) -> None:
        """Plan, have every node told and settled, and be where the trace begins."""
        record, clock = self.record, self.clock
        settling = self._world.create_task(self._followed(0.0))
        while not settling.done() and clock.now_ms() < self._scenario.warm_ms:
            clock.run(clock.now_ms() + _STEP_MS)
        record.settled_ms = settling.result() if settling.done() else inf
        clock.run(clock.now_ms() + _HEARD_MS)
        record.from_ms = start_ms = clock.now_ms()
        record.until_ms = start_ms + self._scenario.arrivals.seconds * 1000.0
        events = [
            *map(self._lose, self._scenario.losses),
            *map(self._change, self._scenario.changes),
        ]
        self._tasks = [self._world.create_task(event) for event in events]
        if self._times_ms:
            clock.call_at(start_ms + self._times_ms[0], self._send)

    def ended(self) -> FleetRecord:
        """What happened."""
        self.record.plans = self._controller.plans
        return self.record

    def _send(self) -> None:
        number, arrivals = self._next, self._scenario.arrivals
        self._next = number + 1
        if self._next < len(self._times_ms):
            self.clock.call_at(self.record.from_ms + self._times_ms[self._next], self._send)
        model = arrivals.models[self._which[number]]
        request = FleetRequest(model, self.clock.now_ms(), self._slos_ms[model])
        self.open[number] = request
        router = self._routers[number % len(self._routers)]
        router.forward(model, number, _Caller(request, partial(self._answered, number)))

    def _sent(self, node: str, data: bytes) -> None:
        request = self.open[int.from_bytes(data[-NUMBER_BYTES:])]
        request.nodes.append(node)
        request.tried_ms.append(self.clock.now_ms())

    def _answered(self, number: int, request: FleetRequest, outcome: Outcome) -> None:
        del self.open[number]
        request.answered_ms = now_ms = self.clock.now_ms()
        late = outcome is Outcome.OK and now_ms - request.arrived_ms > request.slo_ms
        request.outcome = Outcome.LATE if late else outcome
        self.record.requests.append(request)

    async def _lose(self, loss: Loss) -> None:
        await asyncio.sleep(loss.at_ms / 1000.0)
        node, seen = self._nodes[loss.node], LossSeen(loss, self.clock.now_ms())
        node.lose(loss.kind)
        self.record.losses.append(seen)
        if loss.back_ms < inf:
            self._world.call_later(loss.back_ms / 1000.0, node.come_back, loss.kind)
        back_ms = seen.at_ms + loss.back_ms + _HEARD_MS
        while not self._controller.misses(loss.node):
            if self.clock.now_ms() > back_ms:
                return  # nobody has noticed
            await asyncio.sleep(_LOOK_S)
        seen.noticed_ms = self.clock.now_ms()
        seen.replanned_ms = await self._followed(seen.noticed_ms)

    async def _change(self, change: RateChange) -> None:
        await asyncio.sleep(change.at_ms / 1000.0)
        seen, loads = ChangeSeen(self.clock.now_ms()), self.record.loads
        self.record.changes.append(seen)
        self._controller.deploy(change.demand)
        seen.settled_ms = await self._followed(seen.at_ms)
        seen.loads = self.record.loads - loads

    async def _followed(self, since_ms: float) -> float:
        """When every node follows a plan that was asked for since then."""
        while not self._controller.follow(since_ms):
            await asyncio.sleep(_LOOK_S)
        return self.clock.now_ms()

    def _count(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        self.record.orders += type(event) is PlanChanged
        for command in commands:
            if type(command) is Load:
                self.record.loads += 1
            elif type(command) is CreatePartition:
                self.record.cuts += 1


@dataclass(frozen=True, slots=True)
class LossReport:
    """One loss. ``noticed_ms`` and ``replanned_ms`` count from when the node was lost."""

    node: str
    kind: str
    at_s: float
    noticed_ms: float
    replanned_ms: float


@dataclass(frozen=True, slots=True)
class FleetReport:
    """Figures of one run. ``broken`` requests were not answered within their SLO, for any reason.

    ``retried`` were sent to more than one node, ``moves`` are loads of models.
    """

    requests: int
    offered_rps: float
    goodput_rps: float
    attainment: float
    worst_attainment: float
    broken: int
    outcomes: Mapping[str, int]
    retried: int
    p50_ms: float
    p99_ms: float
    settled_ms: float
    moves: int
    cuts: int
    orders: int
    plans: int
    losses: tuple[LossReport, ...]


def fleet_report(record: FleetRecord) -> FleetReport:
    """The figures of one run."""
    seconds = (record.until_ms - record.from_ms) / 1000.0
    sent, kept = Counter[str](), Counter[str]()
    for one in record.requests:
        sent[one.model] += 1
        kept[one.model] += one.in_time
    count, in_time = len(record.requests), kept.total()
    taken_ms = [one.answered_ms - one.arrived_ms for one in record.requests if one.in_time]
    p50_ms, p99_ms = np.percentile(taken_ms, (50, 99)).tolist() if taken_ms else (0.0, 0.0)
    return FleetReport(
        requests=count,
        offered_rps=count / seconds,
        goodput_rps=in_time / seconds,
        attainment=in_time / count if count else 1.0,
        worst_attainment=min((kept[model] / sent[model] for model in sent), default=1.0),
        broken=count - in_time,
        outcomes=dict(Counter(one.outcome.value for one in record.requests)),
        retried=sum(len(one.nodes) > 1 for one in record.requests),
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        settled_ms=record.settled_ms,
        moves=record.loads,
        cuts=record.cuts,
        orders=record.orders,
        plans=record.plans,
        losses=tuple(
            LossReport(
                one.loss.node,
                one.loss.kind.value,
                (one.at_ms - record.from_ms) / 1000.0,
                one.noticed_ms - one.at_ms,
                one.replanned_ms - one.at_ms,
            )
            for one in record.losses
        ),
    )
