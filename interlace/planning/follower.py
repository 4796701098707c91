"""Planners that follow a plan made before: from a file, or assigned by a controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.deployment_key import model_name
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.perf.latency import surface
from interlace.policy.base import Planner


@dataclass(frozen=True, slots=True)
class PlanFollower:
    """The same partitions whatever the rates, for as long as a model of theirs is deployed.

    Models are found by their public name, which a deployment key begins with; during a reload the
    old and the new deployment have the same places. Slots of models that are not deployed are left
    out. ``otherwise`` plans models that the plan does not know, as if they were alone. Each of
    those places becomes a turn in the smallest partition of at least that share, or in the largest
    partition: a plan is followed, not improved. Without a model of the plan, ``otherwise`` plans.
    """

    partitions: tuple[Partition, ...]
    otherwise: Planner

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        kept = [replace(part, slots=deployed_slots(part.slots, demand)) for part in self.partitions]
        homes = {slot.model for part in kept for slot in part.slots}
        guests = [one for one in demand if one.model not in homes]
        if not homes:
            return self.otherwise(demand, fleet, profiles, current)
        if not guests:
            return Plan(tuple(kept))
        alone = self.otherwise(guests, fleet, profiles, Plan())
        return _joined(kept, alone, {one.model: one for one in guests}, profiles)


def deployed_slots(slots: Sequence[Slot], demand: Sequence[Demand]) -> tuple[Slot, ...]:
    """A slot for every deployment of the models in ``slots``."""
    return tuple(
        replace(slot, model=one.model, batch=min(slot.batch, one.max_batch))
        for slot in slots
        for one in demand
        if model_name(one.model) == slot.model
    )


def _joined(
    kept: list[Partition], alone: Plan, guests: Mapping[str, Demand], profiles: Profiles
) -> Plan:
    """The kept partitions with turns for guests, where one row of theirs meets the SLO."""
    placed: set[str] = set()
    for part in alone.partitions:
        index = _nearest(kept, part.share_pct)
        home = kept[index]
        for slot in part.slots:
            there = any(own.model == slot.model for own in home.slots)
            batch = _batch(slot, guests[slot.model], home.share_pct, profiles)
            if batch and not there:
                home = replace(home, slots=(*home.slots, replace(slot, batch=batch)))
                placed.add(slot.model)
        kept[index] = home
    left = {name: one.rows_per_s for name, one in guests.items() if name not in placed}
    why = "not one row is within its SLO in a partition of the plan that is followed"
    return Plan(tuple(kept), left, {name: alone.reasons.get(name, why) for name in left})


def _nearest(kept: Sequence[Partition], share_pct: int) -> int:
    """The smallest partition of at least that share, else the largest; of equals the emptiest."""

    def rank(index: int) -> tuple[bool, int, int]:
        missing = share_pct - kept[index].share_pct
        return (missing > 0, abs(missing), len(kept[index].slots))

    return min(range(len(kept)), key=rank)


def _batch(slot: Slot, asked: Demand, share_pct: int, profiles: Profiles) -> int:
    latency = surface(profiles[slot.model])
    if share_pct < latency.shares_pct[0]:
        return 0
    return latency.largest_batch(asked.slo_ms, share_pct, slot.batch)


_WHY: Final = "the assignment of this node has no place for it"


@dataclass(frozen=True, slots=True)
class AssignedPlan:
    """The same plan whatever the rates; models of it have public names, as in ``PlanFollower``.

    What it does not name has no place, and what is not deployed leaves its place empty.
    """

    plan: Plan

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        placed = tuple(
            replace(part, slots=deployed_slots(part.slots, demand)) for part in self.plan.partitions
        )
        homes = {slot.model for part in placed for slot in part.slots}
        left = {one.model: one.rows_per_s for one in demand if one.model not in homes}
        return replace(
            self.plan,
            partitions=placed,
            unserved_rows_per_s=left,
            reasons=dict.fromkeys(left, _WHY),
            elastic={},
        )
