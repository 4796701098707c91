"""Who is deployed, and which plan is wanted."""

from __future__ import annotations

from dataclasses import replace

from interlace.core.messages import (
    Command,
    Deployment,
    Failure,
    GpuJoined,
    GpuLeft,
    Load,
    ModelsDeployed,
    PartitionWork,
    PlanSolved,
    ReportStatus,
    Run,
    SolvePlan,
)
from interlace.core.plan import Demand, Plan
from interlace.engine.arrival_rates import ArrivalRates
from interlace.engine.fleet_controller import FleetController
from interlace.engine.latency_estimator import AdmissionMargin, LatencyEstimator
from interlace.engine.plan_diff import keep_partition_ids, match_gpus
from interlace.engine.reconciler import Reconciler
from interlace.engine.replan_trigger import ReplanTrigger
from interlace.engine.request_queue import RequestQueue
from interlace.engine.state import DeployedModel, EngineState
from interlace.policy.base import Scaler

#: A model that kills its worker this often within the window is set aside.
CRASH_LIMIT = 3
CRASH_WINDOW_MS = 600_000.0


class PlanController:
    """Deployments and plans. Every ``ModelsDeployed`` model is told of once: ready, or failed."""

    def __init__(
        self,
        state: EngineState,
        moving: Reconciler,
        rates: ArrivalRates,
        scaler: Scaler,
        scaling: FleetController,
    ) -> None:
        self._state = state
        self._moving = moving
        self._rates = rates
        self._scaler = scaler
        self._scaling = scaling
        self._watch = ReplanTrigger(state, rates, scaler)
        self._ticket = 0
        self._open_ticket: int | None = None
        self._stale = False

    def deploy(self, deployed: ModelsDeployed) -> list[Command]:
        """Take models in and ask for a plan that holds them."""
        for one in deployed.deployments:
            self._state.models[one.demand.model] = _tenant(one)
        return self.ask()

    def withdraw(self, model: str, now_ms: float) -> list[Command]:
        """Serve what is queued, then unload everywhere."""
        deployed = self._state.models.get(model)
        if deployed is None:
            return [ReportStatus(model, "gone")]
        deployed.leaving = True
        return self._moving.settle(now_ms)

    def ask(self) -> list[Command]:
        """Ask for a plan for the present demand; one question at a time is open."""
        if self._open_ticket is not None:
            self._stale = True
            return []
        fleet, largest = self._state.fleet, self._scaling.largest
        if not fleet.gpus and (largest is None or not largest.gpus):
            return []  # nowhere to plan for, until an accelerator comes
        self._ticket += 1
        self._open_ticket, self._stale = self._ticket, False
        served = self._state.served()
        models = [t for name, t in self._state.models.items() if name in served]
        demand = tuple(
            replace(t.demand, rows_per_s=self._target_rows_per_s(t.demand)) for t in models
        )
        profiles = {t.demand.model: t.profile for t in models}
        self._watch.asked(demand)
        return [SolvePlan(self._ticket, demand, self._current(), profiles, fleet, largest)]

    def planned(self, planned: PlanSolved, now_ms: float) -> list[Command]:
        """Head for a new plan."""
        if planned.ticket != self._open_ticket:
            return []
        self._open_ticket = None
        self._watch.planned(now_ms)
        there = {gpu.id for gpu in self._state.fleet.gpus}
        if any(p.gpu not in there for p in planned.plan.partitions):
            return self.ask() + self._moving.settle(now_ms)  # an accelerator left meanwhile
        commands: list[Command] = []
        if planned.failure is None:
            if planned.ample is not None or self._falls_short(planned.plan):
                commands += self._scaling.wish(planned)
            if self._worth_moving(planned, now_ms):
                self._head_for(planned.plan)
        commands += self._tell_unplaced(planned, now_ms)
        if self._stale:
            commands += self.ask()
        return commands + self._moving.settle(now_ms)

    def tick(self, now_ms: float) -> list[Command]:
        """Close an epoch: replan if that is due, repeat what failed, let go what is not needed."""
        again = self._moving.take_back(now_ms)
        commands = self.ask() if self._watch.due(now_ms) or again else []
        commands += self._moving.settle(now_ms)
        return commands if self._open_ticket is not None else commands + self._scaling.dismissals()

    def joined(self, joined: GpuJoined, now_ms: float) -> list[Command]:
        """An accelerator came: plan with it."""
        self._scaling.joined(joined.gpu)
        return self.ask() + self._moving.settle(now_ms)

    def left(self, left: GpuLeft, now_ms: float) -> list[Command]:
        """An accelerator went: if it was in use, plan without it."""
        lost = self._scaling.left(left.gpu)
        return (self.ask() if lost else []) + self._moving.settle(now_ms)

    def blame(self, work: PartitionWork, failure: Failure | None, now_ms: float) -> list[Command]:
        """A worker died: count it against the model that it ran or loaded.

        Work behind the first piece of a dead partition is not to blame, nor is what was beside the
        cause in one process.
        """
        if failure is None or not failure.fatal:
            return []
        live = self._state.lives.get(work.partition)
        if live is not None:
            if live.dying:
                return []
            live.dying = True
        if failure.innocent:
            return []
        model = _model_of(work)
        return [] if model is None else self.crashed(model, failure.detail, now_ms)

    def crashed(self, model: str, detail: str, now_ms: float) -> list[Command]:
        """Count the death of a worker against a model, and set it aside if it is one too many."""
        deployed = self._state.models.get(model)
        if deployed is None or deployed.aside is not None:
            return []
        recent = [t for t in deployed.crashes_ms if now_ms - t < CRASH_WINDOW_MS]
        deployed.crashes_ms = [*recent, now_ms]
        if len(deployed.crashes_ms) < CRASH_LIMIT:
            return []
        reason = (
            f"set aside: it crashed its worker {CRASH_LIMIT} times within "
            f"{CRASH_WINDOW_MS / 60_000.0:g} min, last with: {detail}"
        )
        return self._moving.set_aside(model, deployed, reason, now_ms)

    def _target_rows_per_s(self, demand: Demand) -> float:
        seen_rows_per_s = self._rates.rows_per_s(demand.model)
        return (
            self._scaler.target_rows_per_s(seen_rows_per_s)
            if seen_rows_per_s > 0.0
            else demand.rows_per_s
        )

    def _falls_short(self, plan: Plan) -> bool:
        """True if it leaves unserved what is asked for by callers, not only by expectation."""
        return any(self._rates.rows_per_s(model) > 0.0 for model in plan.unserved_rows_per_s)

    def _worth_moving(self, planned: PlanSolved, now_ms: float) -> bool:
        """False while accelerators are on their way, and what stands serves every model.

        Moving twice within a minute costs more than it brings, unless they do not come.
        """
        if planned.ample is None or planned.ample == planned.plan or not self._scaling.coming:
            self._state.short_since_ms = None
            return True
        if self._state.short_since_ms is None:
            self._state.short_since_ms = now_ms
        homeless = any(not self._state.wants(model) for model in self._state.served())
        return homeless or now_ms - self._state.short_since_ms >= self._scaler.patience_ms > 0.0

    def _head_for(self, plan: Plan) -> None:
        state = self._state
        plan = keep_partition_ids(
            match_gpus(plan, state.lives, state.fleet), state.lives, state.partitions
        )
        state.partitions += len(plan.partitions)
        state.target = self._with_late_arrivals(plan)

    def _tell_unplaced(self, planned: PlanSolved, now_ms: float) -> list[Command]:
        """Set aside what the planner finds no place for, with its reason."""
        commands: list[Command] = []
        awaited: set[str] = set()
        if planned.ample is not None and self._scaling.coming:
            awaited = {slot.model for p in planned.ample.partitions for slot in p.slots}
        for name, deployed in list(self._state.models.items()):
            if name in awaited:
                continue
            asked = deployed.aside is None and not deployed.leaving and not self._stale
            if asked and not self._state.wants(name) and not deployed.hosts:
                why = planned.failure or planned.plan.reasons.get(name, "no partition can hold it")
                commands += self._moving.set_aside(
                    name, deployed, f"it has no place: {why}", now_ms
                )
        return commands

    def _with_late_arrivals(self, plan: Plan) -> Plan:
        """The plan without models that left or were set aside while it was made."""
        self._state.target = plan
        for partition in plan.partitions:
            for slot in partition.slots:
                deployed = self._state.models.get(slot.model)
                if deployed is None or deployed.aside is not None or deployed.leaving:
                    self._state.drop_from_target(slot.model)
        return self._state.target

    def _current(self) -> Plan:
        lives = sorted(self._state.lives.values(), key=lambda live: live.id)
        return replace(self._state.target, partitions=tuple(live.as_plan() for live in lives))


def _tenant(one: Deployment) -> DeployedModel:
    estimator = LatencyEstimator(one.demand, one.profile)
    admission_margin = AdmissionMargin(one.demand.slo_ms)
    return DeployedModel(
        one.demand, one.profile, RequestQueue(one.queue_limit), estimator, admission_margin
    )


def _model_of(work: PartitionWork) -> str | None:
    match work:
        case Run(batch=batch):
            return batch.model
        case Load(model=model):
            return model
        case _:
            return None
