"""The widest plan: a planner's answer to the largest multiple of the demand that still fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.feasibility import feasible, known_rate, too_slow
from interlace.packing.lending import hosting_all
from interlace.perf.tables import Tables
from interlace.policy.base import Planner

#: A rate that asks only whether the SLO can be met at all.
_TRICKLE_RPS = 0.01


@dataclass(frozen=True, slots=True)
class MaxScale:
    """Use the whole of a fixed fleet: plan for k times every rate, with the largest k that fits.

    The factor is the plan's ``headroom``: above 1 it is room to grow, below 1 what part of the
    demand is served. A model that fits nowhere in a duty cycle still gets a slot if one row meets
    its SLO somewhere, so that admission can promise what the moment allows.

    The factor is looked for between ``lowest`` and ``highest`` in ``steps`` halvings of their
    ratio: few for a planner that takes long, and has margins of its own. Where a plan stands that
    has a factor it begins there, by strides that double: most changes are small.
    """

    planner: Planner
    lowest: float = 1e-3
    highest: float = 1e4
    steps: int = 24

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible([known_rate(one, tables) for one in demand], fleet, tables, waits=0.0)
        wanted = asked.wanted
        servable = self._servable(wanted, fleet, profiles)
        factor, plan = self._largest(servable, fleet, profiles, current)
        plan = hosting_all(plan, wanted, fleet, tables)
        short = {d.model: d.rows_per_s * (1 - factor) for d in servable if factor < 1}
        lost = {d.model: d.rows_per_s for d in wanted if d not in servable}
        reasons = {name: "the accelerators are full" for name in short}
        reasons |= {d.model: too_slow(d, tables) for d in wanted if d not in servable}
        housed = {slot.model for p in plan.partitions for slot in p.slots}
        for one in (d for d in servable if d.model not in housed):
            lost[one.model] = one.rows_per_s
            reasons[one.model] = "no accelerator has the memory or the time left for it"
        return replace(
            plan,
            unserved_rows_per_s=asked.unserved_rows_per_s | short | lost,
            reasons=asked.reasons | reasons,
            headroom=factor,
        )

    def _servable(self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles) -> list[Demand]:
        """Those that some accelerator serves: beside all others, or else alone."""

        def short(some: Sequence[Demand]) -> Mapping[str, float]:
            little = [replace(one, rows_per_s=_TRICKLE_RPS) for one in some]
            return self.planner(little, fleet, profiles, Plan()).unserved_rows_per_s

        crowded = short(demand)
        return [one for one in demand if one.model not in crowded or not short([one])]

    def _largest(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> tuple[float, Plan]:
        """The largest factor that fits, and its plan; what fits of ``lowest`` if none does."""
        cells = 1 << self.steps
        ratio = self.highest / self.lowest
        low, high = 0, cells
        place, stride = cells // 2, cells
        if current.headroom:
            near = round(cells * log(current.headroom / self.lowest) / log(ratio))
            place, stride = min(max(near, 1), cells - 1), 1
        found: Plan | None = None
        while high - low > 1:
            factor = self.lowest * ratio ** (place / cells)
            plan = self.planner(_scaled(demand, factor), fleet, profiles, current)
            if plan.unserved_rows_per_s:
                high = place
                place = max(place - stride, (low + high) // 2)
            else:
                low, found = place, plan
                place = min(place + stride, (low + high) // 2)
            stride *= 2
        factor = self.lowest * ratio ** (low / cells)
        return factor, found or self.planner(_scaled(demand, factor), fleet, profiles, current)


def _scaled(demand: Sequence[Demand], factor: float) -> list[Demand]:
    return [replace(one, rows_per_s=one.rows_per_s * factor) for one in demand]
