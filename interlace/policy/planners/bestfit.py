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
    """The smallest share that serves each rate alone, where it leaves the least over.

    No time sharing and no interference, any number of partitions to an accelerator. Models come by
    rate * SLO, as in gpulet's own planner. Where the paper is silent: a rate that no share serves
    takes the largest shares, one after the other, and then the smallest for what is left.
    """
    tables = Tables(profiles)
    asked = feasible(demand, fleet, tables)
    every = cuts(fleet)
    unserved: dict[str, float] = {}
    for one in sorted(asked.wanted, key=lambda d: (d.rate_rps * d.slo_ms, d.model)):
        left_rps = one.rate_rps
        while left_rps > one.rate_rps * _ROUNDING:
            placed_rps = _place(one, left_rps, every, tables)
            if not placed_rps:
                break
            left_rps -= placed_rps
        if left_rps > one.rate_rps * _ROUNDING:
            unserved[one.model] = left_rps
    reasons = dict.fromkeys(unserved, "no accelerator has a share left that is large enough for it")
    return asked.plan(partitions(every), unserved, reasons)


def _place(one: Demand, rate_rps: float, every: Sequence[GpuCut], tables: Tables) -> float:
    """One partition for as much of the rate as it serves; 0 if there is no place for it."""
    shares = sorted({share for cut in every for share in cut.gpu.shares_pct})
    wanted_pct = tables.required_pct(one, rate_rps, shares) or shares[-1]
    fitting = []
    for index, cut in enumerate(every):
        share_pct = cut.share(wanted_pct)
        if share_pct is not None and cut.holds(Glet(share_pct), one.model, tables.profiles):
            fitting.append((cut.remaining_pct, share_pct, index))
    if not fitting:
        return 0.0
    _, share_pct, index = min(fitting)
    placed_rps = min(rate_rps, tables.saturated_rps(one, share_pct))
    if placed_rps > 0:
        every[index].add(Glet(share_pct, [tables.turn(one, placed_rps, share_pct)]))
    return placed_rps
