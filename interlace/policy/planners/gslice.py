"""A partition of its own for each model, tuned by what was seen: GSLICE's planner (SoCC 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import Glet, GpuCut, cuts, partitions
from interlace.packing.feasibility import feasible
from interlace.perf.tables import Tables

_ROUNDING = 1e-9
_LEAST_PCT = 5


@dataclass(frozen=True, slots=True)
class Gslice:
    """Shares start at the knee and follow the p99 that was seen and the rate that arrives.

    The share a model has is multiplied by the larger of seen p99 / SLO and rate / what the share
    serves, unless that is within ``near`` below 1 or moves it by less than ``step_pct``: from 5 to
    100 %. Without a p99 it is the knee, or more where the rate needs it. What then is left of an
    accelerator goes to its models in proportion to their knees; a model that comes when too little
    is left gets what there is. No model shares a partition. Batches are the largest that keep
    the SLO at the planned rate.

    GSLICE is made for one GPU. On more, models are put where they fit, the largest shares first,
    and one whose rate exceeds a whole GPU gets several.
    """

    near: float = 0.1
    step_pct: int = 3

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible(demand, fleet, tables)
        shares = sorted({share for gpu in fleet.gpus for share in gpu.shares_pct})
        wanted = [(self._wanted_pct(one, shares, tables, current), one) for one in asked.wanted]
        every, served = cuts(fleet), dict.fromkeys((one.model for one in asked.wanted), 0.0)
        homes: list[tuple[Demand, GpuCut, Glet, float]] = []
        for share_pct, one in sorted(wanted, key=lambda w: (-w[0], w[1].model)):
            homes += _placed(one, share_pct, shares, every, tables)
        for cut in every:
            _widen(cut, [(home[2], home[0]) for home in homes if home[1] is cut], tables)
        for one, _, glet, asked_rows_per_s in homes:
            rows_per_s = min(asked_rows_per_s, tables.saturated_rows_per_s(one, glet.share_pct))
            glet.turns = [tables.turn(one, rows_per_s, glet.share_pct)]
            served[one.model] += rows_per_s
        short = {
            one.model: one.rows_per_s - served[one.model]
            for one in asked.wanted
            if served[one.model] < one.rows_per_s * (1 - _ROUNDING)
        }
        return asked.plan(
            partitions(every), short, dict.fromkeys(short, "the share left for it is too small")
        )

    def _wanted_pct(
        self, one: Demand, shares: Sequence[int], tables: Tables, current: Plan
    ) -> float:
        """The share that a model should have now, before it is rounded to what there is."""
        knee_pct = tables.efficient_pct(one, shares) or shares[-1]
        held = [
            p.share_pct
            for p in current.partitions
            if p.share_pct in shares and [s.model for s in p.slots] == [one.model]
        ]
        if one.seen_p99_ms is None or not held:
            return max(knee_pct, tables.required_pct(one, one.rows_per_s, shares) or shares[-1])
        now_pct = max(held)
        serves_rows_per_s = len(held) * tables.saturated_rows_per_s(one, now_pct)
        arrival = one.rows_per_s / serves_rows_per_s if serves_rows_per_s > 0 else 1.0
        change = max(one.seen_p99_ms / one.slo_ms, arrival)
        if 1.0 - self.near <= change <= 1.0 or abs(change - 1.0) * now_pct < self.step_pct:
            return now_pct
        return min(100.0, max(_LEAST_PCT, now_pct * change))


def _placed(
    one: Demand, wanted_pct: float, shares: Sequence[int], every: Sequence[GpuCut], tables: Tables
) -> list[tuple[Demand, GpuCut, Glet, float]]:
    """Partitions for a model: as many as its rate needs, each with an even part of it."""
    most_rows_per_s = tables.saturated_rows_per_s(one, shares[-1])
    count = max(1, ceil(one.rows_per_s / most_rows_per_s - _ROUNDING)) if most_rows_per_s > 0 else 0
    homes = []
    for _ in range(count):
        room = [(cut, cut.share(ceil(wanted_pct))) for cut in every]
        fitting = [(cut, share) for cut, share in room if share is not None]
        # Where none has the share, the one with most left.
        fitting = fitting or sorted(
            ((cut, cut.remaining_pct) for cut in every), key=lambda c: -c[1]
        )
        for cut, share in fitting:
            glet = Glet(share)
            if tables.saturated_rows_per_s(one, share) > 0 and cut.holds(
                glet, one.model, tables.profiles
            ):
                glet.turns = [tables.turn(one, 0.0, share)]
                cut.add(glet)
                homes.append((one, cut, glet, one.rows_per_s / count))
                break
        else:  # no accelerator has room, so none will for the next part
            break
    return homes


def _widen(cut: GpuCut, homes: Sequence[tuple[Glet, Demand]], tables: Tables) -> None:
    """What is left of an accelerator, given out in proportion to the knees."""
    shares = cut.gpu.shares_pct
    knees = [tables.efficient_pct(one, shares) or 100 for _, one in homes]
    spare_pct = 100 - sum(glet.share_pct for glet, _ in homes)
    for (glet, _), knee in zip(homes, knees, strict=True):
        target_pct = glet.share_pct + spare_pct * knee / sum(knees)
        others = [g.share_pct for g in cut.glets if g is not glet]
        wider = (s for s in reversed(shares) if glet.share_pct < s <= target_pct)
        glet.share_pct = next(
            (s for s in wider if cut.gpu.legal([*others, s]) and _keeps(cut, glet, s, tables)),
            glet.share_pct,
        )


def _keeps(cut: GpuCut, glet: Glet, share_pct: int, tables: Tables) -> bool:
    """True if the model's memory is there at the wider share too: walls come with the share."""
    others = GpuCut(cut.gpu, glets=[g for g in cut.glets if g is not glet])
    return others.holds(Glet(share_pct), glet.models[0], tables.profiles)
