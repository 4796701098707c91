"""Uncut accelerators with every model on each: the plan of temporal sharing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import slots
from interlace.packing.feasibility import feasible
from interlace.perf.duty import CycleTurn, fit, shortest
from interlace.perf.memory import holds
from interlace.perf.tables import Tables

_HALVINGS: Final = 20


def time_shared(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    """One partition of 100 % per accelerator, rates spread evenly (D-STACK section 6, temporal).

    If the rates do not fit, the largest common fraction of them that does is served.
    """
    tables = Tables(profiles)
    asked = feasible(demand, fleet, tables)
    kept, left_out = _within_memory(asked.wanted, fleet.gpus, profiles)
    unserved = {one.model: one.rows_per_s for one in left_out}
    reasons = {one.model: "it does not fit in memory beside the others" for one in left_out}
    if not kept:
        return asked.plan((), unserved, reasons)
    fraction, turns = _largest(kept, tables, len(fleet.gpus))
    cycle = fit(turns)
    if cycle is None:
        full = {one.model: one.rows_per_s for one in kept}
        why = "one row of each takes longer than the tightest SLO allows"
        return asked.plan((), full | unserved, dict.fromkeys(full, why) | reasons)
    each = slots(turns, cycle)
    parts = tuple(Partition(f"{gpu.id}:0", gpu.id, 100, each, cycle.duty_ms) for gpu in fleet.gpus)
    short = {one.model: one.rows_per_s * (1 - fraction) for one in kept if fraction < 1}
    return asked.plan(
        parts, short | unserved, dict.fromkeys(short, "the accelerators are full") | reasons
    )


def time_shared_packed(
    demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
) -> Plan:
    """The same on the first accelerators of the fleet, as few as leave no more unserved.

    Each has every model, so more of them is never worse: found by halving.
    """
    best = time_shared(demand, fleet, profiles, current)
    low, high = 0, len(fleet.gpus)
    while high - low > 1:
        middle = (low + high) // 2
        plan = time_shared(demand, Fleet(fleet.gpus[:middle]), profiles, current)
        if plan.unserved_rows_per_s == best.unserved_rows_per_s:
            best, high = plan, middle
        else:
            low = middle
    return best


def _within_memory(
    demand: Sequence[Demand], gpus: Sequence[Gpu], profiles: Profiles
) -> tuple[list[Demand], list[Demand]]:
    """Those that fit together in every memory, in the order asked for, and the rest."""
    kept: list[Demand] = []
    left_out: list[Demand] = []
    for one in demand:
        together = [(100, [d.model for d in (*kept, one)])]
        fits = all(holds(gpu, together, profiles) for gpu in _distinct(gpus))
        (kept if fits else left_out).append(one)
    return kept, left_out


def _distinct(gpus: Sequence[Gpu]) -> list[Gpu]:
    return list({(gpu.memory_bytes, gpu.walls): gpu for gpu in gpus}.values())


def _largest(demand: Sequence[Demand], tables: Tables, count: int) -> tuple[float, list[CycleTurn]]:
    """The largest part of every rate that fits, and the turns of one accelerator."""

    def turns(part: float) -> list[CycleTurn]:
        return [tables.turn(one, one.rows_per_s * part / count, 100) for one in demand]

    if shortest(turns(1.0)) is not None:
        return 1.0, turns(1.0)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if shortest(turns(middle)) is None:
            high = middle
        else:
            low = middle
    return low, turns(low)
