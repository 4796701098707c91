"""Models whose only accelerators were lost get turns on those that are left, without a search."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.fleet.fleet_gpus import node_of, own_models_of
from interlace.packing.lending import room_ms
from interlace.perf.memory import holds_partitions
from interlace.perf.tables import Tables
from interlace.policy.base import Planner

#: So many places are looked at for a model: the rule is for the moment, and is to cost none.
_TRIES: Final = 64


def rehomed(
    plan: Plan,
    homeless: Collection[str],
    demand: Sequence[Demand],
    fleet: Fleet,
    profiles: Mapping[str, Profiles],
) -> Plan:
    """The plan with a turn on these accelerators for each ``homeless`` model.

    Models with the highest rates are placed first, each in the partition with the fewest turns for
    its share. A place that breaks no SLO, by the rule for guests, is preferred; else the model's
    own SLO alone must hold. Guests make room. A model without a place waits for the next plan.
    ``demand`` is of all models, and ``profiles`` are by kind and model.
    """
    places = _Places(plan, demand, fleet, profiles)
    for one in sorted(demand, key=lambda d: (-d.rows_per_s, d.model)):
        if one.model in homeless:
            places.take(one)
    return replace(plan, partitions=places.partitions)


class _Places:
    """Partitions, those with the fewest turns for their share first; an idle accelerator is one."""

    def __init__(
        self, plan: Plan, demand: Sequence[Demand], fleet: Fleet, profiles: Mapping[str, Profiles]
    ) -> None:
        self._wanted = {one.model: one for one in demand}
        self._gpus = {gpu.id: gpu for gpu in fleet.gpus}
        self._tables = {kind: Tables(models) for kind, models in profiles.items()}
        self._on: dict[str, dict[str, Partition]] = {}
        for part in plan.partitions:
            self._on.setdefault(part.gpu, {})[part.id] = part
        for gpu in self._gpus.values():
            whole = Partition(f"{gpu.id}:home", gpu.id, max(gpu.shares_pct))
            self._on.setdefault(gpu.id, {whole.id: whole})
        self._heap = [(_crowd(p), p.id, p.gpu) for on in self._on.values() for p in on.values()]
        heapify(self._heap)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Those that have any turns, or guests."""
        return tuple(part for on in self._on.values() for part in on.values() if part.slots)

    def take(self, one: Demand) -> None:
        """Give a model a turn in the first place that can have it."""
        tried = [heappop(self._heap) for _ in range(min(_TRIES, len(self._heap)))]
        places = [self._on[gpu][name] for _, name, gpu in tried]
        any(self._placed(one, part, lends) for lends in (True, False) for part in places)
        for part in places:
            heappush(self._heap, (_crowd(self._on[part.gpu][part.id]), part.id, part.gpu))

    def _placed(self, one: Demand, part: Partition, lends: bool) -> bool:
        """Give it a turn there if memory holds it, beside that accelerator's guests or without."""
        slot = self._slot(one, part, lends)
        if slot is None:
            return False
        gpu, there = self._gpus[part.gpu], self._on[part.gpu]
        for after in (there, {name: _own(each) for name, each in there.items()}):
            others = tuple(s for s in after[part.id].slots if s.model != one.model)
            with_it = {**after, part.id: replace(part, slots=(*others, slot))}
            if holds_partitions(gpu, with_it.values(), self._tables[gpu.kind].profiles):
                self._on[gpu.id] = with_it
                return True
        return False

    def _slot(self, one: Demand, part: Partition, lends: bool) -> Slot | None:
        """Its turn there; ``None`` if it would break its own promise, or one that ``lends``."""
        tables = self._tables.get(self._gpus[part.gpu].kind)
        if tables is None or one.model not in tables.profiles:
            return None
        latency, share_pct, own = tables.surface(one.model), part.share_pct, _own(part)
        if share_pct < latency.shares_pct[0]:
            return None
        limit_ms = one.slo_ms / 2.0
        if lends and own.slots:
            surfaces = {slot.model: tables.surface(slot.model) for slot in own.slots}
            limit_ms = min(limit_ms, room_ms(own, self._wanted, surfaces))
        most = min(one.max_batch, latency.measured_rows(share_pct))
        batch = latency.largest_batch(limit_ms, share_pct, most)
        return Slot(one.model, batch, one.rows_per_s) if batch else None


def _own(part: Partition) -> Partition:
    """A partition without its guests."""
    return replace(part, slots=tuple(slot for slot in part.slots if not slot.guest))


def _crowd(part: Partition) -> float:
    """Turns for the share."""
    return sum(not slot.guest for slot in part.slots) / part.share_pct


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
