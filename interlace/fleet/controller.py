"""Plans for all nodes and assigns models to each, without I/O; its caller passes in reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from interlace.core.errors import bad_input
from interlace.core.hardware import Fleet, Gpu
from interlace.core.messages import (
    Command,
    Deployment,
    GpuJoined,
    GpuLeft,
    ModelsDeployed,
    PlanSolved,
    SolvePlan,
)
from interlace.core.node import Assignment, NodeDescription, NodeModel, NodeState, Revision
from interlace.core.plan import Plan
from interlace.core.profile import Profile
from interlace.core.tables import did_you_mean
from interlace.engine.fleet_planner import FleetPlanner
from interlace.fleet.fleet_gpus import (
    fleet_gpu,
    models_of,
    node_of,
    own_models_of,
    plan_of_nodes,
    plans_by_node,
)
from interlace.fleet.handover import NodePart, handed_over
from interlace.fleet.kinds import NO_PRICES, FleetCost, KindPrices, KindsPlanner
from interlace.fleet.parted_pools import PartedPools
from interlace.fleet.rehoming import AppPlanner, rehomed
from interlace.fleet.status import PlannedFleet, planned_fleet
from interlace.fleet.zones import ZonePlanner
from interlace.policy.base import System
from interlace.runtime.clock import Clock
from interlace.runtime.plan_solver import GiveUp, PlanSolver

#: So long after a model is ready routers have heard it, and its former node may let it go.
_HANDOVER_MS: Final = 100.0


@dataclass(slots=True)
class _Member:
    """A node that is there; ``planned`` once a plan was made for its accelerators, too."""

    gpus: tuple[Gpu, ...]
    zone: str
    began: int
    planned: bool = False
    arrived: dict[str, int] = field(default_factory=dict)
    ready_ms: dict[str, float] = field(default_factory=dict)  #: since when it answers a model
    assignment: Assignment | None = None


class Controller:
    """Has plans made for the accelerators of all nodes, and hands them out node by node.

    A plan that is headed for becomes assignments, which rise in ``revision`` within this
    controller's ``term``.
    """

    def __init__(
        self,
        clock: Clock,
        system: System,
        solver: Callable[[System], PlanSolver],
        term: int,
        nodes: Mapping[str, NodeDescription],
        epoch_ms: float = 1000.0,
        standing: Mapping[str, Assignment] | None = None,
        prices: KindPrices = NO_PRICES,
    ) -> None:
        """``nodes`` are there from the beginning, so that the first plan is for all of them.

        ``solver`` makes what plans by a system. ``standing`` is what nodes were told by an earlier
        controller: the first plan is a change of that.
        """
        self._clock = clock
        self._nodes = {name: _member(name, one) for name, one in nodes.items()}
        self._standing = dict(standing or {})
        for name, one in self._standing.items():
            self._nodes[name].assignment = one
        gpus = [gpu for member in self._nodes.values() for gpu in member.gpus]
        self._planner = FleetPlanner(Fleet(tuple(gpus)), system.scaler, bool(prices))
        self._system, self._solver = system, solver
        self._term = term
        self.prices = prices
        self._number = 0
        self._epoch_ms = epoch_ms
        self._digests: dict[str, str] = {}
        self._profiles: dict[str, dict[str, Profile]] = {}  #: by kind of accelerator and model
        self._apps: dict[str, dict[str, tuple[str, ...]]] = {}  #: by model, with their members
        self._handing_over = False  # models are to leave when they stand elsewhere
        self._question: SolvePlan | None = None  # that is open
        self._give_up: GiveUp = lambda: None
        self._target = self._planner.target
        self.failure = ""  #: why the last question had no plan
        #: models that left before they stand elsewhere, and why
        self.broken: Mapping[str, str] = {}
        self.on_assignments: Callable[[], None] = lambda: None  #: some have changed

    def start(self) -> None:
        """Look at rates at the end of each epoch from now on."""
        self._clock.call_at(self._clock.now_ms() + self._epoch_ms, self._epoch)

    @property
    def planning(self) -> bool:
        """Whether a plan is being made."""
        return self._question is not None

    @property
    def plan(self) -> Plan:
        """What the fleet is to serve, by names of the fleet."""
        return self._target

    @property
    def nodes(self) -> Sequence[str]:
        """Those that are planned for."""
        return list(self._nodes)

    @property
    def models(self) -> Mapping[str, str]:
        """Digests of the files of every model that is to be served, by name."""
        return self._digests

    def joined(self, node: str, description: NodeDescription) -> None:
        """One more node is there, empty or with what it was told before."""
        member = self._nodes[node] = _member(node, description)
        for gpu in member.gpus:
            more = gpu is not member.gpus[-1]
            self._follow(self._planner.joined(GpuJoined(gpu, more)))

    def left(self, node: str) -> None:
        """A node is gone, or to be emptied: its models stand elsewhere from now on.

        Where a model had its turns there alone it has one elsewhere at once, and the plan follows.
        """
        gpus = self._nodes.pop(node).gpus
        self._planner.head_for(self._without(node, len(gpus)))
        for gpu in gpus:
            self._follow(self._planner.left(GpuLeft(gpu.id, more=gpu is not gpus[-1])))

    def heard(self, node: str, state: NodeState) -> None:
        """Count what a node was asked for since it was heard last."""
        member = self._nodes.get(node)
        if member is None:
            return
        if state.began != member.began:
            member.began, member.arrived, member.ready_ms = state.began, {}, {}
        now_ms, ready_ms = self._clock.now_ms(), member.ready_ms
        member.ready_ms = {model: ready_ms.get(model, now_ms) for model in state.models}
        for model, outlook in state.models.items():
            new = outlook.arrived - member.arrived.get(model, outlook.arrived)
            member.arrived[model] = outlook.arrived
            if new > 0 and model in self._digests:
                self._planner.count(model, new)

    def deploy(self, models: Mapping[str, Mapping[str, NodeModel]]) -> None:
        """Serve these models from now on, each as it is on every kind of accelerator that has it.

        They are given by name, and by kind.
        """
        for name, by_kind in models.items():
            self._forget_profiles(name)
            for kind, one in by_kind.items():
                self._digests[name], self._apps[name] = one.digest, one.apps
                self._profiles.setdefault(kind, {})[name] = one.profile
        if self._standing:
            plans = {node: one.plan for node, one in self._standing.items()}
            self._planner.stands(plan_of_nodes(plans, self._digests))
            self._standing, self._target = {}, self._planner.target
        some = [next(iter(by_kind.values())) for by_kind in models.values()]
        deployed = tuple(Deployment(one.demand, one.profile) for one in some)
        self._follow(self._planner.deploy(ModelsDeployed(deployed)))

    def withdraw(self, model: str) -> None:
        """Serve a model no more."""
        if self._digests.pop(model, None) is not None:
            self._forget_profiles(model)
            del self._apps[model]
            self._planner.withdraw(model)
            self._follow(())

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why models are not served, or not all that they ask for."""
        return {**self.broken, **self._planner.reasons}

    def would_plan(
        self,
        rates_rows_per_s: Mapping[str, float],
        without: Collection[str],
        done: Callable[[PlannedFleet], None],
    ) -> None:
        """What would be planned now, for other rates of some models, without some nodes."""
        nodes = {name: one for name, one in self._nodes.items() if name not in without}
        fleet = Fleet(tuple(gpu for one in nodes.values() for gpu in one.gpus))
        question = self._planner.what_if(fleet, rates_rows_per_s)

        def solved(answer: PlanSolved) -> None:
            there = {name: one.gpus for name, one in self._nodes.items()}
            after = self._target if answer.failure else self._planner.aligned(answer.plan, fleet)
            planned = planned_fleet(self._target, after, there, answer.failure or "")
            done(replace(planned, cost=self._cost(after, fleet.gpus)))

        self._solver(self._planning())(question, solved)

    @property
    def cost(self) -> FleetCost | None:
        """Of all accelerators, and of those in use; ``None`` without prices."""
        return self._cost(self._target, [g for one in self._nodes.values() for g in one.gpus])

    def _cost(self, plan: Plan, gpus: Sequence[Gpu]) -> FleetCost | None:
        return self.prices.cost(gpus, {part.gpu for part in plan.partitions})

    def node_price(self, node: str) -> float:
        """What a node's accelerators cost an hour; their number without prices."""
        return self.prices.total(self._nodes[node].gpus)

    def _without(self, node: str, gone: int) -> Plan:
        """The plan without a node; the models that it alone served get turns on the others.

        The node had ``gone`` accelerators; the headroom shrinks in proportion.
        """
        plan = self._target
        kept = tuple(p for p in plan.partitions if node_of(p.gpu) != node)
        homeless = own_models_of(plan.partitions) - own_models_of(kept)
        fleet = Fleet(tuple(gpu for one in self._nodes.values() for gpu in one.gpus))
        demand = self._planner.what_if(fleet, {}).demand
        if plan.headroom is not None:
            before = len(fleet.gpus) + gone
            plan = replace(plan, headroom=plan.headroom * len(fleet.gpus) / before)
        return rehomed(replace(plan, partitions=kept), homeless, demand, fleet, self._profiles)

    def next_revision(self) -> Revision:
        """Of an order that comes after all that were given."""
        self._number += 1
        return Revision(self._term, self._number)

    def nothing(self) -> Assignment:
        """Return the order to serve nothing."""
        return Assignment(self.next_revision(), Plan(), {})

    def assignment(self, node: str) -> Assignment | None:
        """What a node is to serve; ``None`` for one that is not planned for, or not yet."""
        member = self._nodes.get(node)
        return None if member is None else member.assignment

    def _epoch(self) -> None:
        self._follow(self._planner.tick(self._clock.now_ms()))
        self.start()

    def _solve(self, question: SolvePlan) -> None:
        self._give_up()
        self._question = question
        self._give_up = self._solver(self._planning())(question, self._solved)

    def _planning(self) -> System:
        """The system, for the kinds and the zones of the nodes that are there now."""
        zones = {name: member.zone for name, member in self._nodes.items()}
        profiles = {kind: dict(models) for kind, models in self._profiles.items()}
        zoned = ZonePlanner(KindsPlanner(self._system.planner, profiles, self.prices), zones)
        planner = AppPlanner(PartedPools(zoned, profiles), self._members, profiles)
        return replace(self._system, planner=planner)

    def _forget_profiles(self, model: str) -> None:
        for models in self._profiles.values():
            models.pop(model, None)

    def _solved(self, solved: PlanSolved) -> None:
        question = self._question
        if question is None or question.ticket != solved.ticket:
            return  # it was given up
        self._question, self.failure = None, solved.failure or ""
        asked = {gpu.id for gpu in question.fleet.gpus}
        commands = self._planner.planned(solved, self._clock.now_ms())
        if self._planner.target is not self._target:
            for member in self._nodes.values():
                member.planned |= any(gpu.id in asked for gpu in member.gpus)
        self._follow(commands)

    def _follow(self, commands: Sequence[Command]) -> None:
        """Say what nodes have to do for the plan that is headed for, and ask what is asked."""
        target = self._planner.target
        if target is not self._target:
            self._target = target
            self._assign(target)
        for command in commands:
            if isinstance(command, SolvePlan):
                self._solve(command)

    def _assign(self, target: Plan) -> None:
        plans = plans_by_node(target, self._nodes)
        parts = {
            node: NodePart(
                Plan() if member.assignment is None else member.assignment.plan,
                plans[node],
                {gpu.id.partition("/")[2]: gpu for gpu in member.gpus},
                self._profiles.get(member.gpus[0].kind, {}),
            )
            for node, member in self._nodes.items()
            if member.planned  # that it has no part in a plan made without it says nothing
        }
        moving = self._moving(plans)
        steps, lost = handed_over(parts, moving)
        self.broken = {m: why for m, why in {**self.broken, **lost}.items() if m in moving}
        waiting = bool(self.broken) or any(plan != plans[node] for node, plan in steps.items())
        revision = None
        for node, plan in steps.items():
            member = self._nodes[node]
            before = member.assignment
            models = {name: self._digests.get(name, "") for name in models_of(plan.partitions)}
            known = None if before is None else (before.plan, before.models, before.revision.term)
            if known == (plan, models, self._term):
                continue  # after a new term the order is sent again: it fences the old controller
            revision = revision or self.next_revision()
            member.assignment = Assignment(revision, plan, models)
        if revision is not None:
            self.on_assignments()
        if waiting and not self._handing_over:
            self._handing_over = True
            self._clock.call_at(self._clock.now_ms() + _HANDOVER_MS, self._hand_over)

    def _hand_over(self) -> None:
        """Let go what stands elsewhere by now."""
        self._handing_over = False
        self._assign(self._target)

    def _moving(self, plans: Mapping[str, Plan]) -> set[str]:
        """Models that some node is to have and does not answer yet, or not all routers know it.

        With one model of an app all of them stay: another node serves the app once it has all.
        """
        before_ms = self._clock.now_ms() - _HANDOVER_MS
        moving = {
            model
            for node, plan in plans.items()
            for model in own_models_of(plan.partitions)
            if self._nodes[node].ready_ms.get(model, inf) > before_ms
        }
        stay = (who for who in self._members.values() if not moving.isdisjoint(who))
        return moving.union(*stay)

    @property
    def _members(self) -> dict[str, tuple[str, ...]]:
        """The models of each app."""
        return {app: who for one in self._apps.values() for app, who in one.items()}


def _member(node: str, description: NodeDescription) -> _Member:
    gpus = tuple(fleet_gpu(node, gpu) for gpu in description.gpus)
    return _Member(gpus, description.zone, description.began)


async def what_if(
    controller: Controller, rates_rows_per_s: Mapping[str, float], without: Collection[str]
) -> PlannedFleet:
    """The plan for other rates of some models, without some nodes; nothing changes.

    Raises:
        ServeError: there is no such model, or no node is left.
    """
    if not set(controller.nodes) - set(without):
        raise bad_input("without these nodes none is left to plan for")
    for model in rates_rows_per_s.keys() - controller.models.keys():
        hint = did_you_mean(model, controller.models)
        raise bad_input(f"the fleet serves no model '{model}'{hint}")
    found: asyncio.Future[PlannedFleet] = asyncio.get_running_loop().create_future()

    def done(planned: PlannedFleet) -> None:
        if not found.done():  # else whoever asked has gone
            found.set_result(planned)

    controller.would_plan(rates_rows_per_s, without, done)
    return await found
