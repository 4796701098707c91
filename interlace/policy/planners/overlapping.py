"""Every model on every accelerator in a partition of its own, more of them than fit at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.packing.feasibility import feasible, held_together, with_least_rate
from interlace.perf.sizing import Sizing
from interlace.perf.tables import Tables
from interlace.policy.base import Planner

_WHOLE_PCT: Final = 100


@dataclass(frozen=True, slots=True)
class Overlapping:
    """Overlapping partitions: what runs at once is the dispatcher's choice (D-STACK section 6.1).

    With ``sizing`` a model's share and batch are those of highest efficacy, the share over-
    provisioned (section 5); where none meets the SLO it gets all of the accelerator, a row at a
    time. Without, every share is 100 %, as under MPS with no limits set, and the batch is
    ``batch`` or the largest the model takes. On several accelerators every model is on each
    (section 7.1), as far as memory goes; models of the highest load are placed first.

    Accelerators whose partitions are walls or slices cannot overlap them: ``otherwise`` is asked.
    """

    otherwise: Planner
    sizing: Sizing | None = None
    batch: int | None = None

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        if any(gpu.layouts or gpu.walls for gpu in fleet.gpus):
            return self.otherwise(demand, fleet, profiles, current)
        tables = Tables(profiles)
        asked = feasible([with_least_rate(one) for one in demand], fleet, tables, waits=0.0)
        wanted = sorted(asked.wanted, key=lambda d: (-_load(d, tables), d.model))
        homes = {gpu.id: held_together(wanted, gpu, profiles) for gpu in fleet.gpus}
        partitions = [
            self._partition(one, gpu, sum(one in held for held in homes.values()), tables)
            for gpu in fleet.gpus
            for one in homes[gpu.id]
        ]
        placed = {slot.model for partition in partitions for slot in partition.slots}
        lost = {d.model: d.rows_per_s for d in wanted if d.model not in placed}
        reasons = dict.fromkeys(lost, "no accelerator has the memory left for it")
        short = {
            d.model: _beyond_rows_per_s(d, partitions, tables) for d in wanted if d.model in placed
        }
        short = {model: rows_per_s for model, rows_per_s in short.items() if rows_per_s > 0}
        reasons |= dict.fromkeys(short, "more than its partitions serve if they run all the time")
        plan = asked.plan(tuple(partitions), lost | short, reasons)
        return Plan(
            plan.partitions,
            plan.unserved_rows_per_s,
            plan.reasons,
            session_ms=max((one.slo_ms for one in wanted), default=None),
            overlapping=True,
        )

    def _partition(self, one: Demand, gpu: Gpu, replicas: int, tables: Tables) -> Partition:
        share_pct, batch = self._size(one, gpu, tables)
        slot = Slot(one.model, batch, one.rows_per_s / replicas)
        return Partition(f"{gpu.id}:{one.model}", gpu.id, share_pct, (slot,))

    def _size(self, one: Demand, gpu: Gpu, tables: Tables) -> tuple[int, int]:
        if self.sizing is None:
            return _WHOLE_PCT, min(self.batch or one.max_batch, one.max_batch)
        latency = tables.surface(one.model)
        size = self.sizing(latency, one.slo_ms, gpu.shares_pct, one.max_batch)
        return (size.deployed_pct, size.batch) if size else (_WHOLE_PCT, 1)


def _beyond_rows_per_s(one: Demand, partitions: Sequence[Partition], tables: Tables) -> float:
    """The part of a rate that its partitions could not serve even if nothing else ran."""
    latency = tables.surface(one.model)
    most_rows_per_s = sum(
        latency.throughput_rows_per_s(slot.batch, partition.share_pct)
        for partition in partitions
        for slot in partition.slots
        if slot.model == one.model
    )
    return one.rows_per_s - most_rows_per_s


def _load(one: Demand, tables: Tables) -> float:
    """Accelerators that the model would keep busy alone."""
    most_rows_per_s = tables.saturated_rows_per_s(one, _WHOLE_PCT)
    return one.rows_per_s / most_rows_per_s if most_rows_per_s > 0 else 0.0
