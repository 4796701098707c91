"""A planner that gives the plan which this node was told to have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.planning.follower import deployed_slots

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
