"""Whole accelerators with workers of many sizes: the plans of E2bird (sections 6 and 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, ElasticBatching, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.packing.cuts import ROUNDING, CutGpus, left_over, partitions
from interlace.packing.feasibility import feasible
from interlace.perf.latency import Surface
from interlace.perf.memory import holds
from interlace.perf.tables import Tables
from interlace.perf.worker_sizes import (
    SIZES,
    TOTALS,
    Configuration,
    Measure,
    co_running,
    engine,
    naive,
    search,
)
from interlace.policy.base import Planner

_WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class E2bird:
    """One engine on each accelerator, as in section 8; the busiest models choose first.

    A model gets accelerators of its own, as many as its rate keeps busy. What is left of it goes
    to one that is free, or, when none is, takes turns with others where it fits. ``notes`` say
    which workers N-Ebird keeps for each model: any load up to the largest batch in time.
    """

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible(demand, fleet, tables)
        engines = CutGpus(fleet, tables, most=1)

        def engines_wanted(one: Demand) -> float:
            most_rows_per_s = tables.saturated_rows_per_s(one, _WHOLE)
            return one.rows_per_s / most_rows_per_s if most_rows_per_s > 0 else 0.0

        def place(one: Demand, rows_per_s: float) -> float:
            """A free accelerator of its own, else turns with others."""
            free = ((cut, cut.share(_WHOLE)) for cut in engines.cuts if not cut.glets)
            own = (engines.open(one, rows_per_s, cut, share) for cut, share in free if share)
            return (
                next(filter(None, own), 0.0)
                or engines.join(one, rows_per_s, engines.glets)
                or engines.squeeze(one, rows_per_s, one.rows_per_s * ROUNDING)
            )

        left = {
            one.model: left_over(one, place)
            for one in sorted(asked.wanted, key=lambda d: (-engines_wanted(d), d.model))
        }
        unserved = {model: rows_per_s for model, rows_per_s in left.items() if rows_per_s}
        reasons = dict.fromkeys(unserved, "no accelerator has the time or the memory left for it")
        plan = asked.plan(partitions(engines.cuts), unserved, reasons)
        return replace(plan, notes=tuple(_workers_note(one, tables) for one in asked.wanted))


def _workers_note(one: Demand, tables: Tables) -> str:
    """N-Ebird's list for the model on a whole accelerator."""
    table = tables.turn(one, one.rows_per_s, _WHOLE).latency_ms
    most = max(batch for batch, run_ms in enumerate(table) if 2 * run_ms <= one.slo_ms)
    sizes = ", ".join(str(size) for size in naive(max(1, most)))
    return f"{one.model}: workers of {sizes} rows"


#: Batch sizes of a model's workers in ascending order, and how they are used.
Engine = tuple[tuple[int, ...], ElasticBatching]
MakeEngine = Callable[[Surface, Demand], Engine]


def naive_engine(latency: Surface, one: Demand) -> Engine:
    """N-Ebird's: workers for any load up to MaxInf, the largest batch in time (section 7.2)."""
    most = _max_rows(latency, one)
    return naive(most), ElasticBatching(most)


@dataclass(frozen=True, slots=True)
class SearchedEngine:
    """E-Ebird's: workers for the best configuration of each load (sections 7.3.1 and 7.3.2).

    ``measure`` says how long a model's workers take together, from its latencies alone.
    """

    measure: Callable[[Surface], Measure]

    def __call__(self, latency: Surface, one: Demand) -> Engine:
        most = _max_rows(latency, one)
        totals = [total for total in TOTALS if total <= most]
        guide = search(self.measure(latency), totals)
        wanted = engine(guide.best.values())
        sizes = tuple(size for size in _sizes(wanted) if size <= most)
        best = {total: _sizes(chosen)[::-1] for total, chosen in guide.best.items()}
        return sizes, ElasticBatching(most, best)


def _equal_parts(latency: Surface) -> Measure:
    return co_running(latency, _WHOLE)


#: Nothing is measured: workers have equal parts, as processes on a processor have.
searched_engine: Final = SearchedEngine(_equal_parts)


@dataclass(frozen=True, slots=True)
class ElasticWorkers:
    """A plan of whole accelerators with an engine of workers for every model in it.

    The workers of an accelerator are partitions of all of it: they overlap. They share the weights
    (section 6.2); where memory is short for all their activations, the largest are left out.
    Accelerators whose partitions have walls, as MIG's do, cannot overlap: there models take turns,
    a row at a time.
    """

    placement: Planner
    make: MakeEngine

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        plan = self.placement(demand, fleet, profiles, current)
        tables = Tables(profiles)
        wanted = {one.model: one for one in demand}
        engines = {
            name: self.make(tables.surface(name), wanted[name])
            for name in dict.fromkeys(s.model for p in plan.partitions for s in p.slots)
        }
        partitions: list[Partition] = []
        for whole in plan.partitions:
            gpu = fleet.gpu(whole.gpu)
            if gpu.layouts or gpu.walls or whole.share_pct != _WHOLE:
                partitions.append(whole)
            else:
                partitions.extend(_workers(whole, gpu, engines, profiles))
        elastic = {name: known for name, (_, known) in engines.items()}
        return replace(plan, partitions=tuple(partitions), overlapping=True, elastic=elastic)


def _workers(
    whole: Partition, gpu: Gpu, engines: dict[str, Engine], profiles: Profiles
) -> list[Partition]:
    """One accelerator's workers in place of its turns; each model keeps at least one."""
    sizes = {slot.model: list(engines[slot.model][0]) for slot in whole.slots}
    while not _within_memory(sizes, gpu, profiles):
        most = max(sizes, key=lambda model: (len(sizes[model]), model))
        if len(sizes[most]) < 2:
            break
        sizes[most].pop()
    return [
        Partition(
            f"{whole.id}:{slot.model}:{place}",
            gpu.id,
            _WHOLE,
            (Slot(slot.model, size, slot.rows_per_s * size / sum(sizes[slot.model])),),
        )
        for slot in whole.slots
        for place, size in enumerate(sizes[slot.model])
    ]


def _within_memory(sizes: dict[str, list[int]], gpu: Gpu, profiles: Profiles) -> bool:
    held = [(_WHOLE, [model]) for model, batches in sizes.items() for _ in batches]
    return holds(gpu, held, profiles)


def _max_rows(latency: Surface, one: Demand) -> int:
    """MaxBS of N-Ebird: the largest batch of one worker within the target (section 7.2)."""
    return max(1, latency.largest_batch(one.slo_ms, _WHOLE, one.max_batch))


def _sizes(one: Configuration) -> tuple[int, ...]:
    assert len(one) <= SIZES
    return tuple(1 << power for power, count in enumerate(one) for _ in range(count))
