"""The better of several planners' answers to the same question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.policy.base import Planner


@dataclass(frozen=True, slots=True)
class BestOf:
    """The plan that leaves least unserved, then uses fewest accelerators; the first of equals.

    Only planners that promise the same may be compared so.
    """

    planners: tuple[Planner, ...]

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        best: Plan | None = None
        for planner in self.planners:
            plan = planner(demand, fleet, profiles, current)
            if best is None or _rank(plan) < _rank(best):
                best = plan
            if not plan.unserved_rows_per_s and len({p.gpu for p in plan.partitions}) <= 1:
                break
        return best or Plan()


def _rank(plan: Plan) -> tuple[float, int]:
    return (sum(plan.unserved_rows_per_s.values()), len({part.gpu for part in plan.partitions}))
