"""What a plan leaves of its accelerators, given to its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Partition, Plan
from interlace.core.profile import Profiles
from interlace.perf.latency import Surface, surface
from interlace.perf.memory import holds


def widened(plan: Plan, fleet: Fleet, profiles: Profiles) -> Plan:
    """The plan with partitions as wide as their accelerators allow, the busiest first.

    An idle share serves no request; given to a partition it shortens every batch there.
    Partitions grow a legal share at a time. Their batches stay as planned.
    """
    models = {slot.model for partition in plan.partitions for slot in partition.slots}
    surfaces = {model: surface(profiles[model]) for model in models}
    grown: dict[str, Partition] = {}
    for gpu in fleet.gpus:
        here = {p.id: p for p in plan.partitions if p.gpu == gpu.id}
        grown |= _grown(here, gpu, surfaces, profiles)
    return replace(plan, partitions=tuple(grown[p.id] for p in plan.partitions))


def _grown(
    here: dict[str, Partition], gpu: Gpu, surfaces: Mapping[str, Surface], profiles: Profiles
) -> dict[str, Partition]:
    """One accelerator's partitions after everything that fits was given away."""
    stuck: set[str] = set()
    while free := [p for p in here.values() if p.id not in stuck and p.slots]:
        busiest = max(free, key=lambda p: (_busy(p, surfaces), p.id))
        larger = [share for share in gpu.shares_pct if share > busiest.share_pct]
        wider = replace(busiest, share_pct=larger[0]) if larger else busiest
        after = {**here, wider.id: wider}
        if larger and _fits(after, gpu, profiles):
            here = after
        else:
            stuck.add(busiest.id)
    return here


def _fits(here: Mapping[str, Partition], gpu: Gpu, profiles: Profiles) -> bool:
    if not gpu.legal([p.share_pct for p in here.values()]):
        return False
    held = [(p.share_pct, [slot.model for slot in p.slots]) for p in here.values()]
    return holds(gpu, held, profiles)


def _busy(partition: Partition, surfaces: Mapping[str, Surface]) -> float:
    """The part of its time that a partition's planned rates take."""
    return sum(
        slot.rows_per_s
        / slot.batch
        * surfaces[slot.model].latency_ms(slot.batch, partition.share_pct)
        / 1000.0
        for slot in partition.slots
    )
