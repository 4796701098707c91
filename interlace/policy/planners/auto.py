"""Our planner of accelerators that are there: packed where they can be cut finely, else nested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.lending import with_guests
from interlace.packing.widening import widened
from interlace.policy.base import Planner


@dataclass(frozen=True, slots=True)
class Auto:
    """``coarse`` for a machine of a few large units, ``fine`` for accelerators of many shares.

    On two cores, packing leaves a core idle that a burst could use, and all models everywhere is
    better. On a GPU that can be cut finely, small shares serve more (the knee), and models whose
    lengths differ are kept apart. An accelerator is coarse with up to ``few`` legal shares.

    The fine plan is for the largest multiple of the rates that fits, under arrivals no burstier
    than Poisson: of a fleet that is there every part is used, and more cannot be kept for bursts.
    What shares are left widen the partitions.

    A cut that falls short of the rates is compared with partitions that overlap
    (``overlapping``), where shares are a launch's choice. Models whose knees add up to several
    accelerators get little in a cut, and turns at the knee there. Their headroom must be larger by
    ``worth``: below that ratio the worst-off model pays for what others gain, above it more is
    served at no such price (docs/benchmarks.md, ``bench.versus``).
    """

    coarse: Planner
    fine: Planner
    overlapping: Planner
    few: int = 4
    worth: float = 1.15

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        if all(len(gpu.shares_pct) <= self.few and not gpu.layouts for gpu in fleet.gpus):
            return self.coarse(demand, fleet, profiles, current)
        even = [replace(one, cv=min(one.cv, 1.0)) for one in demand]
        plan = widened(self.fine(even, fleet, profiles, current), fleet, profiles)
        cut = with_guests(plan, demand, fleet, profiles)
        if cut.headroom is None or cut.headroom >= 1.0:
            return cut
        placed = {slot.model for partition in cut.partitions for slot in partition.slots}
        able = [one for one in demand if one.model in placed]
        wide = self.overlapping(able, fleet, profiles, current)
        if wide.headroom is None or wide.headroom < self.worth * cut.headroom:
            return cut
        rest = {m: r for m, r in cut.unserved_rows_per_s.items() if m not in placed}
        return replace(
            wide,
            unserved_rows_per_s={**rest, **wide.unserved_rows_per_s},
            reasons={**{model: cut.reasons[model] for model in rest}, **wide.reasons},
        )
