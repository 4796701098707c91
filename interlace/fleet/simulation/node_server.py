"""A node's server in virtual time, from start to end: an engine that follows assignments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.deployment_key import DeploymentKey, model_name
from interlace.core.errors import Reason, ServeError
from interlace.core.hardware import Fleet
from interlace.core.messages import (
    Deployment,
    ModelsDeployed,
    ModelWithdrawn,
    PlanChanged,
    ReportSettled,
    ReportStatus,
)
from interlace.core.node import UNASSIGNED, Assignment, NodeDescription, NodeState
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.core.request import Outcome, Reply, Request
from interlace.engine.engine import Engine
from interlace.fleet.simulation.scenario import FleetSimulation
from interlace.planning.follower import AssignedPlan
from interlace.runtime.clock import Call, Clock
from interlace.runtime.plan_solver import AssignedPlanSolver
from interlace.runtime.runtime import Observer, Runtime

#: What became of a request at a node; a refusal may be tried elsewhere.
OnAnswer = Callable[[Outcome, ServeError | None], None]


#: A state is reused for ``_FRESH_MS``, or for longer: making states takes at most ``_PART`` of the
#: time. Making one takes ``_TURN_MS`` for each turn of a model in a partition.
_FRESH_MS: Final = 10.0
_TURN_MS: Final = 0.005
_PART: Final = 0.02


@dataclass(slots=True)
class _Served:
    """A model of the assignment: its deployment, and the requests for it."""

    key: str
    ready: bool = False
    arrived: int = 0


class NodeServer:
    """One life of a node's process. Orders are fenced as on a live node, by revision."""

    def __init__(
        self,
        description: NodeDescription,
        scenario: FleetSimulation,
        demand: Mapping[str, Demand],
        clock: NodeClock,
        observers: Sequence[Observer],
    ) -> None:
        """``demand`` is of all models, by public name."""
        self.description = description
        self.revision = UNASSIGNED
        self._demand = demand
        self._clock = clock
        self._solver = AssignedPlanSolver(clock)
        self._served: dict[str, _Served] = {}
        self._failures: dict[str, str] = {}
        self._truth: dict[str, Profile] = {}  #: by deployment
        kind = description.gpus[0].kind
        self._belief, self._all_true = scenario.belief[kind], scenario.truth[kind]
        self._queue_limit = scenario.queue_limit
        self._generation = 0
        self._last = NodeState(description.began, 0, {})
        self._old_at_ms = 0.0
        self._settled = True
        self._newest: Assignment | None = None
        gpus = description.gpus
        devices = {gpu.id: scenario.device(gpu, clock, self._truth) for gpu in gpus}
        self._engine = Engine(Fleet(gpus), scenario.system)
        self._runtime = Runtime(
            self._engine, clock, devices, self._solver, observers, scenario.epoch_ms
        )
        self._runtime.on_status = self._reported
        self._runtime.start()

    def state(self) -> NodeState:
        """How this node is: made anew when the last one is old, as ``control.node_states`` does."""
        now_ms = self._clock.now_ms()
        settled = self._settled and not self._solver.answering
        last = self._last
        if now_ms < self._old_at_ms and (last.settled, last.revision) == (settled, self.revision):
            return last
        outlooks = self._engine.outlooks(now_ms)
        models = {
            name: replace(outlooks[one.key], arrived=one.arrived)
            for name, one in self._served.items()
            if one.ready and one.key in outlooks
        }
        turns = 0 if self._newest is None else _turns(self._newest.plan)
        self._old_at_ms = now_ms + max(_FRESH_MS, turns * _TURN_MS / _PART)
        self._last = NodeState(
            self.description.began, last.number + 1, models, self.revision,
            settled=settled, failures=dict(self._failures),
        )  # fmt: skip
        return self._last

    def assign(self, assignment: Assignment) -> bool:
        """Begin to carry an assignment out; false if a newer order was taken before."""
        if assignment == self._newest:
            return True
        if assignment.revision <= self.revision:
            return False
        self.revision, self._newest, self._failures = assignment.revision, assignment, {}
        for name in [name for name in self._served if name not in assignment.models]:
            self._runtime.deliver(ModelWithdrawn(self._served.pop(name).key))
        self._solver.follow(AssignedPlan(assignment.plan))
        self._runtime.deliver(PlanChanged())
        new = [name for name in assignment.models if name not in self._served]
        self._runtime.deliver(ModelsDeployed(tuple(map(self._deployment, new))))
        return True

    def infer(self, model: str, waited_ms: float, answer: OnAnswer) -> None:
        """Serve a request that came to a router ``waited_ms`` ago; ``answer`` is called once."""
        served = self._served.get(model)
        if served is None or not served.ready:
            why = f"node {self.description.name}: '{model}'"
            answer(Outcome.REFUSED, ServeError(Reason.NOT_READY, why))
            return
        served.arrived += 1
        now_ms = self._clock.now_ms()
        slo_ms = self._demand[model].slo_ms
        request = Request(self._runtime.next_id(), served.key, now_ms, now_ms + slo_ms - waited_ms)

        def replied(reply: Reply) -> None:
            self._runtime.delivered(reply)
            answer(reply.outcome, reply.error)

        self._runtime.submit(request, replied)

    def _deployment(self, name: str) -> Deployment:
        self._generation += 1
        key = str(DeploymentKey(name, 1, self._generation))
        self._served[name] = _Served(key)
        self._truth[key] = self._all_true[name]
        asked = replace(self._demand[name], model=key)
        return Deployment(asked, self._belief[name], self._queue_limit)

    def _reported(self, report: ReportStatus | ReportSettled) -> None:
        if isinstance(report, ReportSettled):
            self._settled = report.settled
            return
        if report.status == "gone":
            self._truth.pop(report.model, None)
        name = model_name(report.model)
        served = self._served.get(name)
        if served is not None and served.key == report.model:
            served.ready = report.status == "ready"
            if report.status == "failed":
                self._failures[name] = report.detail


def _turns(plan: Plan) -> int:
    return sum(len(part.slots) for part in plan.partitions)


class NodeClock:
    """A ``Clock`` whose calls wait while the node hangs, and are dropped once it has ended.

    What it says that it is goes on meanwhile, as a machine's clock does.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: list[Call] = []
        self._stopped = False
        self._ended = False

    def now_ms(self) -> float:
        return self._clock.now_ms()

    def call_at(self, at_ms: float, call: Call) -> None:
        self._clock.call_at(at_ms, lambda: self._due(call))

    def call_soon(self, call: Call) -> None:
        self._clock.call_soon(lambda: self._due(call))

    def stop(self) -> None:
        """Make no call until ``go_on``."""
        self._stopped = True

    def go_on(self) -> None:
        """Make the calls that have waited, in order."""
        self._stopped = False
        held, self._held = self._held, []
        for call in held:
            self.call_soon(call)

    def end(self) -> None:
        """Make no call any more."""
        self._ended = True
        self._held = []

    def _due(self, call: Call) -> None:
        if self._ended:
            return
        if self._stopped:
            self._held.append(call)
        else:
            call()
