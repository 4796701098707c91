"""The models of an app stand together on one node: only such a node serves the app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.fleet.fleet_gpus import node_of, own_models_of
from interlace.fleet.rehoming import rehomed
from interlace.policy.base import Planner


@dataclass(frozen=True, slots=True)
class AppPlanner:
    """Another planner's plan, with all models of each app on one node at least.

    ``apps`` are the models of each app, ``profiles`` are by kind and model. Where no node has all
    of an app, the one that has most of it gets turns for the rest. An app for which no node has
    room is among the plan's reasons.
    """

    planner: Planner
    apps: Mapping[str, Sequence[str]]
    profiles: Mapping[str, Profiles]

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        plan = self.planner(demand, fleet, profiles, current)
        asked = {one.model for one in demand}
        for app, members in sorted(self.apps.items()):
            if asked.issuperset(members):
                plan = self._gathered(plan, app, members, demand, fleet, current)
        return plan

    def _gathered(
        self,
        plan: Plan,
        app: str,
        members: Sequence[str],
        demand: Sequence[Demand],
        fleet: Fleet,
        current: Plan,
    ) -> Plan:
        here, before = _by_node(plan, fleet), _by_node(current, fleet)
        missing = {node: {*members} - models for node, models in here.items()}
        if not all(missing.values()):
            return plan
        # What stands stays: the same node gets the turns again.
        order = sorted(missing, key=lambda n: (len({*members} - before[n]), len(missing[n]), n))
        for node in order:
            some = Fleet(tuple(gpu for gpu in fleet.gpus if node_of(gpu.id) == node))
            own = tuple(part for part in plan.partitions if node_of(part.gpu) == node)
            part = replace(plan, partitions=own)
            more = rehomed(part, missing[node], demand, some, self.profiles)
            if own_models_of(more.partitions).issuperset(members):
                others = (one for one in plan.partitions if one not in own)
                return replace(plan, partitions=(*others, *more.partitions))
        why = f"no node has room for all of its models: {', '.join(members)}"
        return replace(plan, reasons={**plan.reasons, app: why})


def _by_node(plan: Plan, fleet: Fleet) -> dict[str, set[str]]:
    """The models that have a turn of their own on each node."""
    found: dict[str, set[str]] = {node_of(gpu.id): set() for gpu in fleet.gpus}
    for part in plan.partitions:
        found.setdefault(node_of(part.gpu), set()).update(own_models_of([part]))
    return found
