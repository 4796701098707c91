"""Every model in one partition of the whole accelerator, on each accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.packing.feasibility import feasible, held_together, with_least_rate
from interlace.perf.tables import Tables

_WHOLE_PCT: Final = 100


def colocated(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    """Uncut accelerators with all models on each, as servers without partitions have them.

    Whether the rates fit together is not checked; unserved is only what is too much for a model
    alone. Models beyond the memory are left out, those asked for last first.
    """
    tables = Tables(profiles)
    asked = feasible([with_least_rate(one) for one in demand], fleet, tables, waits=0.0)
    homes = {gpu.id: held_together(asked.wanted, gpu, profiles) for gpu in fleet.gpus}
    replicas = {one: sum(one in held for held in homes.values()) for one in asked.wanted}
    partitions = tuple(
        Partition(
            f"{gpu.id}:0",
            gpu.id,
            _WHOLE_PCT,
            tuple(
                Slot(one.model, one.max_batch, one.rows_per_s / replicas[one])
                for one in homes[gpu.id]
            ),
        )
        for gpu in fleet.gpus
    )
    lost = {one.model: one.rows_per_s for one, count in replicas.items() if not count}
    reasons = dict.fromkeys(lost, "no memory is left for it")
    for one, count in replicas.items():
        most_rows_per_s = count * tables.surface(one.model).throughput_rows_per_s(
            one.max_batch, _WHOLE_PCT
        )
        if count and one.rows_per_s > most_rows_per_s:
            lost[one.model] = one.rows_per_s - most_rows_per_s
            reasons[one.model] = "more than the accelerators serve if they run nothing else"
    return asked.plan(partitions, lost, reasons)
