"""A partition of its own for each model: GSLICE's planner (SoCC 2020)."""

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


@dataclass(frozen=True)
class Gslice:
    """Shares are the knee, or more where the rate needs it.

    What then is left of an accelerator goes to its models in proportion to their knees; a model
    that comes when too little is left gets what there is. No model shares a partition. Batches are
    the largest that keep the SLO at the planned rate.

    GSLICE is made for one GPU. On more, models are put where they fit, the largest shares first,
    and one whose rate exceeds a whole GPU gets several.
    """

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible(demand, fleet, tables)
        shares = sorted({share for gpu in fleet.gpus for share in gpu.shares_pct})
        wanted = [(_wanted_pct(one, shares, tables), one) for one in asked.wanted]
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


def _wanted_pct(one: Demand, shares: Sequence[int], tables: Tables) -> int:
    knee_pct = tables.efficient_pct(one, shares) or shares[-1]
    return max(knee_pct, tables.required_pct(one, one.rows_per_s, shares) or shares[-1])


def _placed(
    one: Demand, wanted_pct: int, shares: Sequence[int], every: Sequence[GpuCut], tables: Tables
) -> list[tuple[Demand, GpuCut, Glet, float]]:
    """Partitions for a model: as many as its rate needs, each with an even part of it."""
    most_rows_per_s = tables.saturated_rows_per_s(one, shares[-1])
    count = max(1, ceil(one.rows_per_s / most_rows_per_s - _ROUNDING)) if most_rows_per_s > 0 else 0
    homes = []
    for _ in range(count):
        room = [(cut, cut.share(wanted_pct)) for cut in every]
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
