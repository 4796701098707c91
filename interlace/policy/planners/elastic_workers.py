"""Whole accelerators with workers side by side: how E2bird uses those that are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, ElasticBatching, Partition, Plan, Slot
from interlace.core.profile import Profiles
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
    largest_in_time,
    naive,
    search,
)
from interlace.policy.base import Planner

_WHOLE: Final = 100

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
    return max(1, largest_in_time(latency, _WHOLE, one.slo_ms, one.max_batch))


def _sizes(one: Configuration) -> tuple[int, ...]:
    assert len(one) <= SIZES
    return tuple(1 << power for power, count in enumerate(one) for _ in range(count))
