"""Which models are deployed, when a plan is asked for, and which plan is the target."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.messages import (
    Command,
    Deployment,
    GpuJoined,
    GpuLeft,
    ModelsDeployed,
    PlanSolved,
    ReportStatus,
    SolvePlan,
)
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.engine.corrections import AdmissionMargin, LatencyEstimator
from interlace.engine.gpu_scaler import GpuScaler
from interlace.engine.plan_diff import keep_partition_ids, match_gpus, settled
from interlace.engine.quarantine import ModelQuarantine
from interlace.engine.rate_tracker import RateTracker
from interlace.engine.request_queue import RequestQueue
from interlace.engine.state import DeployedModel, EngineState
from interlace.policy.base import Scaler

#: A plan that has not settled after this long is not waited for.
_STUCK_MS: Final = 60_000.0


@dataclass(slots=True)
class ReplanTrigger:
    """Asks for a plan when rates moved, models came or went, or GPUs asked for did not come.

    Never within the scaler's cool-down. On a fixed fleet only the mix of work matters, since a plan
    uses the whole fleet anyway. On an elastic one, or where accelerators have prices, higher rates
    count after ``resolve_ms`` and lower ones after ``patience_ms``.
    """

    _state: EngineState
    _rates: RateTracker
    _scaler: Scaler
    _asked_rows_per_s: dict[str, float] = field(default_factory=dict)
    _since_ms: float = float("-inf")
    _trend: int = 0
    _trend_since_ms: float = 0.0

    def asked(self, demand: Sequence[Demand]) -> None:
        """A plan for this demand is being made."""
        self._asked_rows_per_s = {one.model: one.rows_per_s for one in demand}
        self._trend = 0

    def planned(self, now_ms: float) -> None:
        """A plan was made just now."""
        self._since_ms = now_ms

    def due(self, now_ms: float) -> bool:
        """Close an epoch; true if a plan should be asked for."""
        sampled = self._rates.tick(now_ms)
        since_ms = now_ms - self._since_ms
        if since_ms < self._scaler.cool_down_ms:
            return False
        if since_ms < _STUCK_MS and not settled(self._state.partitions, self._state.target):
            return False  # or plans would follow each other and none would ever be in place
        if self._state.served() != self._asked_rows_per_s.keys():
            return True
        if not sampled:
            return False
        if not (self._state.elastic or self._state.priced):
            return self._mix_changed()
        return self._rates_moved(now_ms) or self._waited_too_long(now_ms)

    def _rates_moved(self, now_ms: float) -> bool:
        moves = [
            self._scaler.moved(self._rates.rows_per_s(model), planned_rows_per_s)
            for model, planned_rows_per_s in self._asked_rows_per_s.items()
            if self._rates.rows_per_s(model) > 0.0
        ]
        if any(move > 0 for move in moves):
            return self._lasting(1, self._scaler.resolve_ms, now_ms)
        if any(move < 0 for move in moves):
            return self._lasting(-1, self._scaler.patience_ms, now_ms)
        self._trend = 0
        return False

    def _lasting(self, trend: int, least_ms: float, now_ms: float) -> bool:
        """True if rates have moved that way without a break for ``least_ms``."""
        if trend != self._trend:
            self._trend, self._trend_since_ms = trend, now_ms
        return now_ms - self._trend_since_ms >= least_ms

    def _waited_too_long(self, now_ms: float) -> bool:
        """True if accelerators have been waited for so long that a plan without them is due."""
        since_ms = self._state.short_since_ms
        return since_ms is not None and now_ms - max(since_ms, self._since_ms) >= max(
            self._scaler.patience_ms, self._scaler.period_ms
        )

    def _mix_changed(self) -> bool:
        planned_rows_per_s: dict[str, float] = {}
        for partition in self._state.target.partitions:
            for slot in partition.slots:
                planned_rows_per_s[slot.model] = (
                    planned_rows_per_s.get(slot.model, 0.0) + slot.rows_per_s
                )
        cost_ms = {
            name: deployed.estimator.latency_ms(1, 100)
            for name, deployed in self._state.models.items()
            if deployed.quarantine_reason is None
        }
        return self._rates.mix_changed(cost_ms, planned_rows_per_s)


class PlanController:
    """Takes deployments in, asks for plans, and decides which plan to head for.

    The owner of each deployed model gets one ``ReportStatus``: ready, or failed.
    """

    def __init__(
        self,
        state: EngineState,
        quarantine: ModelQuarantine,
        rates: RateTracker,
        scaler: Scaler,
        fleet: GpuScaler,
        matches: bool = True,
    ) -> None:
        """``matches``: plans are matched with what stands here, not by the planner."""
        self._state = state
        self._quarantine = quarantine
        self._rates = rates
        self._scaler = scaler
        self._fleet = fleet
        self._matches = matches
        self._trigger = ReplanTrigger(state, rates, scaler)
        self._ticket = 0
        self._open_ticket: int | None = None
        self._stale = False
        self._deferred: PlanSolved | None = None  #: until leavers' queues are served
        self._bereft = False  #: accelerators that were in use have left, of several that leave

    def deploy(self, deployed: ModelsDeployed) -> list[Command]:
        """Take models in and ask for a plan that holds them."""
        for one in deployed.deployments:
            self._state.models[one.demand.model] = _deployed_model(one)
        return self.ask()

    def withdraw(self, model: str) -> list[Command]:
        """Serve what is queued, then unload everywhere."""
        deployed = self._state.models.get(model)
        if deployed is None:
            return [ReportStatus(model, "gone")]
        deployed.leaving = True
        return []

    def measured(self, model: str, profile: Profile) -> list[Command]:
        """Plan and predict with another profile; what was learned of the old one is forgotten."""
        deployed = self._state.models.get(model)
        if deployed is None or deployed.leaving:
            return []
        read_ms = deployed.estimator.read_ms
        deployed.profile = profile
        deployed.estimator = LatencyEstimator(deployed.demand, profile)
        deployed.estimator.read_ms = read_ms
        return self.ask()

    def ask(self) -> list[Command]:
        """Ask for a plan for the present demand; one question at a time is open, the latest."""
        if self._open_ticket is not None:
            self._stale = True
            return []
        fleet, largest = self._state.fleet, self._fleet.largest
        if not fleet.gpus and (largest is None or not largest.gpus):
            return []  # nowhere to plan for, until an accelerator comes
        self._ticket += 1
        self._open_ticket, self._stale = self._ticket, False
        question = self.question(self._ticket, fleet, largest, self._state.served(), {})
        self._trigger.asked(question.demand)
        return [question]

    def question(
        self,
        ticket: int,
        fleet: Fleet,
        largest: Fleet | None,
        models: Collection[str],
        rates_rows_per_s: Mapping[str, float],
    ) -> SolvePlan:
        """What is asked of a planner for these models, at the rates that were seen or are given."""
        asked = [one for name, one in self._state.models.items() if name in models]
        rates = [
            rates_rows_per_s.get(one.demand.model, self._target_rows_per_s(one.demand))
            for one in asked
        ]
        demand = tuple(
            replace(one.demand, rows_per_s=rate) for one, rate in zip(asked, rates, strict=True)
        )
        profiles = {one.demand.model: one.profile for one in asked}
        return SolvePlan(ticket, demand, self._current(), profiles, fleet, largest)

    def planned(self, planned: PlanSolved, now_ms: float) -> list[Command]:
        """Head for a new plan, once the one that stands has served what waits for leavers."""
        self._deferred = None
        if planned.ticket != self._open_ticket:
            return []
        if self._leavers_wait():
            self._deferred = planned
            return []
        self._open_ticket = None
        self._trigger.planned(now_ms)
        there = {gpu.id for gpu in self._state.fleet.gpus}
        if any(p.gpu not in there for p in planned.plan.partitions):
            return self.ask()  # an accelerator left meanwhile
        commands: list[Command] = []
        if planned.failure is None:
            if planned.ample is not None or self._falls_short(planned.plan):
                commands += self._fleet.scale_for(planned)
            if self._worth_moving(planned, now_ms):
                self._head_for(planned.plan)
        commands += self._quarantine_unplaced(planned, now_ms)
        if self._stale:
            commands += self.ask()
        return commands

    def resume(self, now_ms: float) -> list[Command]:
        """Head for the plan that was deferred, if nothing waits for leavers any more."""
        return [] if self._deferred is None else self.planned(self._deferred, now_ms)

    def _leavers_wait(self) -> bool:
        """Whether requests of models that leave wait where they can be served.

        No more come, so that is at most until their deadlines.
        """
        return any(
            one.leaving and one.waiting and bool(one.hosts or one.lenders)
            for one in self._state.models.values()
        )

    def tick(self, now_ms: float) -> list[Command]:
        """Close an epoch: replan if that is due, repeat what failed, let go what is not needed."""
        due = self._quarantine.end_due(now_ms)
        moved = self._trigger.due(now_ms) and self._open_ticket is None
        return self.ask() if moved or due else []

    def dismissals(self) -> list[Command]:
        """Accelerators that can go; none while a plan is being made that may want them."""
        return [] if self._open_ticket is not None else self._fleet.dismissals()

    def joined(self, joined: GpuJoined) -> list[Command]:
        """An accelerator came: plan with it."""
        self._fleet.joined(joined.gpu)
        return [] if joined.more else self.ask()

    def left(self, left: GpuLeft) -> list[Command]:
        """An accelerator went: if it was in use, plan without it, whatever is being planned."""
        self._bereft = self._fleet.left(left.gpu) or self._bereft
        if left.more or not self._bereft:
            return []
        self._bereft, self._open_ticket = False, None
        return self.ask()

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
        if planned.ample is None or planned.ample == planned.plan or not self._fleet.coming:
            self._state.short_since_ms = None
            return True
        if self._state.short_since_ms is None:
            self._state.short_since_ms = now_ms
        homeless = any(not self._state.wants(model) for model in self._state.served())
        return homeless or now_ms - self._state.short_since_ms >= self._scaler.patience_ms > 0.0

    def _head_for(self, plan: Plan) -> None:
        state = self._state
        plan = self.aligned(plan, state.fleet)
        state.partition_serial += len(plan.partitions)
        state.target = self._with_late_arrivals(plan)

    def aligned(self, plan: Plan, fleet: Fleet) -> Plan:
        """The plan with what stands on accelerators of ``fleet`` for what is like it."""
        partitions = self._state.partitions
        if self._matches:
            plan = match_gpus(plan, partitions, fleet)
        return keep_partition_ids(plan, partitions, self._state.partition_serial)

    def _quarantine_unplaced(self, planned: PlanSolved, now_ms: float) -> list[Command]:
        """Quarantine what the planner finds no place for, with its reason."""
        commands: list[Command] = []
        awaited: set[str] = set()
        if planned.ample is not None and self._fleet.coming:
            awaited = {slot.model for p in planned.ample.partitions for slot in p.slots}
        wanted = {slot.model for p in self._state.target.partitions for slot in p.slots}
        for name, deployed in list(self._state.models.items()):
            if name in awaited or name in wanted:
                continue
            asked = deployed.quarantine_reason is None and not deployed.leaving and not self._stale
            if asked and not deployed.hosts:
                why = planned.failure or planned.plan.reasons.get(name, "no partition can hold it")
                reason = f"it has no place: {why}"
                commands += self._quarantine.start(name, deployed, reason, now_ms)
        return commands

    def _with_late_arrivals(self, plan: Plan) -> Plan:
        """The plan without models that left or were were quarantined while it was made."""
        self._state.target = plan
        for partition in plan.partitions:
            for slot in partition.slots:
                deployed = self._state.models.get(slot.model)
                if deployed is None or deployed.quarantine_reason is not None or deployed.leaving:
                    self._state.drop_from_target(slot.model)
        return self._state.target

    def _current(self) -> Plan:
        standing = sorted(self._state.partitions.values(), key=lambda live: live.id)
        return replace(self._state.target, partitions=tuple(live.as_plan() for live in standing))


def _deployed_model(one: Deployment) -> DeployedModel:
    estimator = LatencyEstimator(one.demand, one.profile)
    admission_margin = AdmissionMargin(one.demand.slo_ms)
    return DeployedModel(
        one.demand,
        one.profile,
        RequestQueue(one.queue_limit),
        estimator,
        admission_margin,
        pinned=one.pinned,
        keep_ms=one.keep_ms,
        limit_ms=one.limit_ms,
    )
