"""Every model in one partition of the whole accelerator, on each accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.packing.feasibility import feasible
from interlace.perf.memory import holds
from interlace.perf.tables import Tables

_WHOLE_PCT: Final = 100
#: A model of unknown rate is given a place.
_TRICKLE_RPS: Final = 1e-3


def colocated(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    """Uncut accelerators with all models on each, as servers without partitions have them.

    Nobody asks whether the rates fit together; only what a model alone would be too much for is
    unserved. Models beyond the memory are left out, those asked for last first.
    """
    tables = Tables(profiles)
    asked = feasible([_with_rate(one) for one in demand], fleet, tables, waits=0.0)
    homes = {gpu.id: _within_memory(asked.wanted, gpu, profiles) for gpu in fleet.gpus}
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


def _with_rate(one: Demand) -> Demand:
    return replace(one, rows_per_s=one.rows_per_s or _TRICKLE_RPS)


def _within_memory(wanted: Sequence[Demand], gpu: Gpu, profiles: Profiles) -> list[Demand]:
    kept: list[Demand] = []
    for one in wanted:
        if holds(gpu, [(_WHOLE_PCT, [d.model for d in (*kept, one)])], profiles):
            kept.append(one)
    return kept
