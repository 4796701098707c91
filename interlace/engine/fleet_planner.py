"""The planning half of the engine, over the accelerators of many servers that carry plans out."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.core.hardware import Fleet
from interlace.core.messages import (
    Command,
    GpuJoined,
    GpuLeft,
    ModelsDeployed,
    PlanSolved,
    SolvePlan,
)
from interlace.core.plan import Plan
from interlace.engine.gpu_scaler import GpuScaler
from interlace.engine.live_partition import LivePartition, ModelState, PartitionState
from interlace.engine.plan_controller import PlanController
from interlace.engine.plan_diff import match_gpus
from interlace.engine.quarantine import ModelQuarantine
from interlace.engine.rate_tracker import RateTracker
from interlace.engine.state import EngineState
from interlace.policy.base import Scaler


class FleetPlanner:
    """Asks for plans as the engine does: for a changed set of models or accelerators, or new rates.

    Planners match accelerators with what stands (``matched``): they know what must stay apart.
    Nothing is carried out here. The target plan counts as standing at once. So a plan costs time in
    proportion to its size only once, whatever steps servers take to reach it.
    """

    def __init__(self, fleet: Fleet, scaler: Scaler, priced: bool = False) -> None:
        """``priced``: accelerators cost more or less, so a plan may leave some idle."""
        self._state = state = EngineState(fleet, priced=priced)
        self._rates = RateTracker(scaler.period_ms, scaler.weight)
        quarantine = ModelQuarantine(state, None)
        controller = GpuScaler(state, scaler)
        self._plans = PlanController(state, quarantine, self._rates, scaler, controller, False)
        self._standing = state.target

    @property
    def target(self) -> Plan:
        """The plan that is headed for."""
        return self._state.target

    @property
    def reasons(self) -> dict[str, str]:
        """Why models are not served, or not all that they ask for."""
        held = {
            name: one.quarantine_reason
            for name, one in self._state.models.items()
            if one.quarantine_reason is not None
        }
        return {**self._state.target.reasons, **held}

    def stands(self, plan: Plan) -> None:
        """Servers have this already: the next plan is a change of it."""
        numbers = (part.id.rpartition(".p")[2] for part in plan.partitions)
        known = (int(number) + 1 for number in numbers if number.isdecimal())
        self._state.partition_serial = max(known, default=0)
        self.head_for(plan)

    def head_for(self, plan: Plan) -> None:
        """Servers are to do this until the next plan comes, which is a change of it."""
        self._state.target = plan
        self._stand([])

    def count(self, model: str, rows: int) -> None:
        """Rows that a server was asked for."""
        self._rates.count(model, rows)

    def deploy(self, deployed: ModelsDeployed) -> list[Command]:
        """Serve these models."""
        return self._stand(self._plans.deploy(deployed))

    def withdraw(self, model: str) -> None:
        """Serve a model no more."""
        self._state.drop_from_target(model)
        self._state.forget(model)
        self._rates.forget(model)
        self._stand([])

    def joined(self, joined: GpuJoined) -> list[Command]:
        """An accelerator came."""
        return self._stand(self._plans.joined(joined))

    def left(self, left: GpuLeft) -> list[Command]:
        """An accelerator went."""
        return self._stand(self._plans.left(left))

    def tick(self, now_ms: float) -> list[Command]:
        """Close an epoch."""
        return self._stand(self._plans.tick(now_ms))

    def planned(self, planned: PlanSolved, now_ms: float) -> list[Command]:
        """Head for a new plan."""
        return self._stand(self._plans.planned(planned, now_ms))

    def what_if(self, fleet: Fleet, rates_rows_per_s: Mapping[str, float]) -> SolvePlan:
        """What would be asked now for all models on this part of the fleet."""
        models = [name for name, one in self._state.models.items() if not one.leaving]
        return self._plans.question(0, fleet, None, models, rates_rows_per_s)

    def aligned(self, plan: Plan, fleet: Fleet) -> Plan:
        """An answer, with what stands on accelerators of ``fleet`` for what is like it."""
        return self._plans.aligned(plan, fleet)

    def _stand(self, commands: list[Command]) -> list[Command]:
        target = self._state.target
        if target is not self._standing:
            self._standing = target
            self._state.partitions = _standing(target)
            self._state.update_hosts()
            for deployed in self._state.models.values():
                deployed.status_reported |= bool(deployed.hosts)
        return commands


def matched(plan: Plan, current: Plan, fleet: Fleet) -> Plan:
    """The plan with equal accelerators swapped so that it resembles the one that stands."""
    return match_gpus(plan, _standing(current), fleet)


def _standing(plan: Plan) -> dict[str, LivePartition]:
    """A plan's partitions, as they are once it is carried out."""
    return {
        part.id: LivePartition(
            part.id,
            part.gpu,
            part.share_pct,
            PartitionState.READY,
            model_states={slot.model: ModelState.LOADED for slot in part.slots},
            slots=part.slots,
        )
        for part in plan.partitions
    }
