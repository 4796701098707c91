"""Uncut accelerators with every model on each: the plan of temporal sharing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.perf.duty import DutyCycle, Turn, fit, turn
from interlace.perf.latency import surface
from interlace.perf.memory import needed_bytes

_HALVINGS = 20


def whole(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    """One partition of 100 % per accelerator, rates spread evenly (D-STACK section 6, temporal).

    If the rates do not fit, the largest common fraction of them that does is served.
    """
    count = len(fleet.gpus)
    if not demand or not count:
        return Plan(unserved_rps={one.model: one.rate_rps for one in demand})
    demand, left_out = _remembered(demand, fleet, profiles)
    fraction, cycle = _largest_fraction(demand, profiles, count)
    if cycle is None:
        batches, duty_ms = [1] * len(demand), 0.0
    else:
        batches, duty_ms = list(cycle.batches), cycle.duty_ms
    slots = tuple(
        Slot(one.model, batch, one.rate_rps * fraction / count)
        for one, batch in zip(demand, batches, strict=True)
    )
    partitions = tuple(Partition(f"{gpu.id}:0", gpu.id, 100, slots, duty_ms) for gpu in fleet.gpus)
    unserved = {d.model: d.rate_rps * (1 - fraction) for d in demand if fraction < 1}
    reasons = dict.fromkeys(unserved, "the accelerators are full")
    unserved |= {d.model: d.rate_rps for d in left_out}
    reasons |= {d.model: "it does not fit in memory beside the others" for d in left_out}
    return Plan(partitions, unserved, reasons)


def _remembered(
    demand: Sequence[Demand], fleet: Fleet, profiles: Profiles
) -> tuple[list[Demand], list[Demand]]:
    """Those that fit together in the smallest memory, in the order asked for, and the rest."""
    room_bytes = min(gpu.memory_bytes for gpu in fleet.gpus)
    kept: list[Demand] = []
    left_out: list[Demand] = []
    for one in demand:
        together = needed_bytes([d.model for d in (*kept, one)], profiles)
        (kept if together <= room_bytes else left_out).append(one)
    return kept, left_out


def _largest_fraction(
    demand: Sequence[Demand], profiles: Profiles, count: int
) -> tuple[float, DutyCycle | None]:
    cycle = fit(_turns(demand, profiles, 1.0 / count))
    if cycle is not None:
        return 1.0, cycle
    low, high, best = 0.0, 1.0, None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        cycle = fit(_turns(demand, profiles, middle / count))
        if cycle is None:
            high = middle
        else:
            low, best = middle, cycle
    return low, best


def _turns(demand: Sequence[Demand], profiles: Profiles, fraction: float) -> list[Turn]:
    scaled = (replace(one, rate_rps=one.rate_rps * fraction) for one in demand)
    return [turn(one, surface(profiles[one.model]), 100) for one in scaled]
