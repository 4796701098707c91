"""Greedy best-fit partitioning: gpulet's baseline for sharing in space alone (section 2.4)."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import Glet, GpuCut, cuts, partitions
from interlace.packing.feasibility import feasible
from interlace.perf.tables import Tables

_ROUNDING = 1e-9


def bestfit(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    """The smallest share that serves each rate alone, where that leaves the least over.

    No time sharing and no interference, any number of partitions to an accelerator. Models come by
    rate * SLO, as in gpulet's own planner. Where the paper is silent: a remainder that can be cut
    no further is given whole only where no accelerator can be cut to the share, as the published
    code does; a rate that no share serves, or none that is left, takes the largest, and what it
    leaves is placed again.
    """
    tables = Tables(profiles)
    asked = feasible(demand, fleet, tables)
    every = cuts(fleet)
    unserved: dict[str, float] = {}
    for one in sorted(asked.wanted, key=lambda d: (d.rows_per_s * d.slo_ms, d.model)):
        left_rows_per_s = one.rows_per_s
        while left_rows_per_s > one.rows_per_s * _ROUNDING:
            placed_rows_per_s = _place(one, left_rows_per_s, every, tables)
            if not placed_rows_per_s:
                break
            left_rows_per_s -= placed_rows_per_s
        if left_rows_per_s > one.rows_per_s * _ROUNDING:
            unserved[one.model] = left_rows_per_s
    reasons = dict.fromkeys(unserved, "no accelerator has a share left that is large enough for it")
    return asked.plan(partitions(every), unserved, reasons)


def _place(one: Demand, rows_per_s: float, every: Sequence[GpuCut], tables: Tables) -> float:
    """One partition for as much of the rate as it serves; 0 if there is no place for it."""
    shares = sorted({share for cut in every for share in cut.gpu.shares_pct})
    wanted_pct = tables.required_pct(one, rows_per_s, shares) or shares[-1]
    smaller = (share for share in reversed(shares) if share < wanted_pct)
    fitting = next(
        filter(None, (_fitting(one, s, every, tables) for s in (wanted_pct, *smaller))), []
    )
    if not fitting:
        return 0.0
    share_pct, _, index = min(fitting)
    placed_rows_per_s = min(rows_per_s, tables.saturated_rows_per_s(one, share_pct))
    if placed_rows_per_s > 0:
        every[index].add(Glet(share_pct, [tables.turn(one, placed_rows_per_s, share_pct)]))
    return placed_rows_per_s


def _fitting(
    one: Demand, wanted_pct: int, every: Sequence[GpuCut], tables: Tables
) -> list[tuple[int, int, int]]:
    """Where a partition of that share fits: the share it gets, what remains there, which it is."""
    shares = ((cut.share(wanted_pct), cut.remaining_pct, i) for i, cut in enumerate(every))
    return [
        (share_pct, remaining_pct, index)
        for share_pct, remaining_pct, index in shares
        if share_pct is not None and every[index].holds(Glet(share_pct), one.model, tables.profiles)
    ]
