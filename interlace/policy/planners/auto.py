"""Our planner of accelerators that are there: packed where they can be cut finely, else nested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.feasibility import feasible, known_rate
from interlace.packing.fluid_pools import FluidPools
from interlace.packing.layouts import alike
from interlace.packing.lending import hosting_all, widened, with_guests
from interlace.perf.memory import most_asked_for, needed_bytes, room_bytes
from interlace.perf.tables import Tables
from interlace.policy.base import Planner

#: A headroom that is larger by less is as large: planners look for it in steps.
_CLEARLY: Final = 1.02
_NO_MEMORY: Final = "memory holds models that are asked for more for each of their bytes"


@dataclass(frozen=True, slots=True)
class Auto:
    """``coarse`` for a machine of a few large units, ``fine`` for accelerators of many shares.

    On two cores, packing leaves a core idle that a burst could use, and all models everywhere is
    better. On a GPU that can be cut finely, small shares serve more (the knee), and models whose
    lengths differ are kept apart. An accelerator is coarse with up to ``few`` legal shares.

    The fine plan is for the largest multiple of the rates that fits, under arrivals no burstier
    than Poisson. It uses every part of the fleet, so no more can be kept for bursts. Shares that
    are left widen the partitions. The plan of ``pools`` takes its place where its multiple is
    clearly larger: one queue for several hosts keeps more requests in time.

    A cut that falls short of the rates is compared with two other plans. Partitions that overlap
    (``overlapping``), where shares are a launch's choice, serve models whose knees add up to
    several accelerators: such models get little in a cut, and turns at the knee there. They
    replace the cut where they fit all rates, or where their headroom is larger by ``worth`` than
    the fine plan's: below that ratio the worst-off model pays for what others gain
    (results/log.md, ``bench.versus``).
    Where the mean coefficient of variation is above ``bursty``, they replace the cut wherever their
    headroom is as large: partitions that overlap lend more.

    Pools of alike partitions replace both where they have time for all rates, and either place
    more models, or have ``ample`` times the headroom of both and the others do not fit. A cut
    counts on no queue that several hosts share, and finds memory for fewer models. The time in
    pools ignores queues, so the plan's headroom stays the one that is known with queues.

    Where memory does not hold every model once, those stay that have most rows/s for each byte.

    One model that fits nowhere holds back every rate of a cut. Where no partitions may overlap and
    pools have no time for all rates, pools for most models and requests replace it.
    """

    coarse: Planner
    fine: Planner
    pools: Planner
    overlapping: Planner
    few: int = 4
    worth: float = 1.15
    ample: float = 2.0
    bursty: float = 1.5

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        out = _beyond_memory(demand, fleet, profiles)
        if out:
            within = [one for one in demand if one.model not in out]
            plan = self(within, fleet, profiles, current)
            unserved = {one.model: one.rows_per_s for one in demand if one.model in out}
            return replace(
                plan,
                unserved_rows_per_s={**plan.unserved_rows_per_s, **unserved},
                reasons={**plan.reasons, **dict.fromkeys(out, _NO_MEMORY)},
            )
        if all(len(gpu.shares_pct) <= self.few and not gpu.layouts for gpu in fleet.gpus):
            return self.coarse(demand, fleet, profiles, current)
        even = [replace(one, cv=min(one.cv, 1.0)) for one in demand]
        fine, pools = (one(even, fleet, profiles, current) for one in (self.fine, self.pools))
        larger = (pools.headroom or 0.0) >= _CLEARLY * (fine.headroom or inf)
        plan = widened(pools if larger else fine, fleet, profiles)
        cut = with_guests(plan, demand, fleet, profiles)
        bursts = self._bursts(demand)
        if cut.headroom is None or (cut.headroom >= 1.0 and not bursts):
            return cut
        placed = {slot.model for partition in cut.partitions for slot in partition.slots}
        able = [one for one in demand if one.model in placed]
        wide = self.overlapping(able, fleet, profiles, current)
        bears = wide.headroom or 0.0
        asked = any(one.rows_per_s > 0.0 for one in demand)  # else pools have nothing to divide
        short = not bears and cut.headroom < 1.0
        pooled = _pooled(demand, fleet, profiles, current, short=short) if asked else None
        if pooled is not None:
            if pooled.headroom is None:
                return replace(pooled, headroom=cut.headroom)
            more = placed < {slot.model for part in pooled.partitions for slot in part.slots}
            known = cut.headroom if more else max(cut.headroom, bears)
            if more or (known < 1.0 and pooled.headroom >= self.ample * known):
                return replace(pooled, headroom=known)
        apart = 0.0 if bursts else min(1.0, self.worth * (fine.headroom or 0.0))
        if not bears or bears < max(cut.headroom, apart):
            return cut
        rest = {m: r for m, r in cut.unserved_rows_per_s.items() if m not in placed}
        return replace(
            wide,
            unserved_rows_per_s={**rest, **wide.unserved_rows_per_s},
            reasons={**{model: cut.reasons[model] for model in rest}, **wide.reasons},
        )

    def _bursts(self, demand: Sequence[Demand]) -> bool:
        """Whether requests come in bursts, each counted alike."""
        total = sum(one.rows_per_s for one in demand)
        return sum(one.rows_per_s * one.cv for one in demand) > self.bursty * total


def _beyond_memory(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles) -> set[str]:
    """Models that fit an accelerator alone, and none beside those that are asked for more."""
    room = max(map(room_bytes, fleet.gpus), default=0)
    known = [one for one in demand if room and one.model in profiles]
    able = [one for one in known if needed_bytes([one.model], profiles, fleet.gpus[0]) <= room]
    return {one.model for one in able} - most_asked_for(able, fleet.gpus, profiles)


def _pooled(
    demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan, *, short: bool
) -> Plan | None:
    """Pools with time for all rates on accelerators of one kind; ``None`` if there are none.

    ``short`` accepts pools for the largest part of models and rates then, without a headroom; the
    other models are where they are in time alone.
    """
    tables = Tables(profiles)
    asked = feasible([known_rate(one, tables) for one in demand], fleet, tables, waits=0.0)
    if not asked.wanted or len(alike(fleet.gpus)) > 1:
        return None
    pools = FluidPools(asked.wanted, fleet, profiles, current)
    found = pools.plan(dict.fromkeys((one.model for one in asked.wanted), 1.0))
    if found is None and short:
        part = pools.short_plan()
        found = part and hosting_all(part, asked.wanted, fleet, tables)
    if found is None:
        return None
    wide = with_guests(widened(found, fleet, profiles), asked.wanted, fleet, profiles)
    return replace(
        wide,
        unserved_rows_per_s={**asked.unserved_rows_per_s, **found.unserved_rows_per_s},
        reasons={**asked.reasons, **found.reasons},
    )
