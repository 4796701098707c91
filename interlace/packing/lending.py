"""Use what a plan leaves idle: wider partitions, time lent to other models, places for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.perf.latency import Surface, surface
from interlace.perf.memory import holds_partitions
from interlace.perf.tables import Tables


def with_guests(
    plan: Plan,
    demand: Sequence[Demand],
    fleet: Fleet,
    profiles: Profiles,
    elsewhere: AbstractSet[str] = frozenset(),
) -> Plan:
    """The plan with every model that has a place a guest wherever it breaks no promise.

    Those that have one ``elsewhere``, on accelerators of another plan, are guests here, too.
    A guest's batch delays no request of the partition's own models beyond its deadline, even one
    that arrives just after the batch began. Its length is at most their SLO less one planned batch
    of each of them. Guests are held in memory where there is room, the longest SLOs first.
    """
    placed = elsewhere | {slot.model for partition in plan.partitions for slot in partition.slots}
    wanted = {one.model: one for one in demand if one.model in placed & profiles.keys()}
    surfaces = {name: surface(profiles[name]) for name in wanted}
    parts = {partition.id: partition for partition in plan.partitions}
    for partition in plan.partitions:
        own_ms = room_ms(partition, wanted, surfaces)
        for one in sorted(wanted.values(), key=lambda d: (-d.slo_ms, d.model)):
            guest = _guest(one, partition, own_ms, surfaces)
            if guest is None:
                continue
            before = parts[partition.id]
            after = {**parts, before.id: replace(before, slots=(*before.slots, guest))}
            here = [p for p in after.values() if p.gpu == before.gpu]
            if holds_partitions(fleet.gpu(before.gpu), here, profiles):
                parts = after
    return replace(plan, partitions=tuple(parts.values()))


def room_ms(
    partition: Partition, wanted: Mapping[str, Demand], surfaces: Mapping[str, Surface]
) -> float:
    """How long the partition may be taken from its own models."""
    runs = {
        slot.model: surfaces[slot.model].latency_ms(slot.batch, partition.share_pct)
        for slot in partition.slots
    }
    return min((wanted[m].slo_ms - sum(runs.values()) for m in runs), default=0.0)


def _guest(
    one: Demand, partition: Partition, room_ms: float, surfaces: Mapping[str, Surface]
) -> Slot | None:
    if any(slot.model == one.model for slot in partition.slots):
        return None
    latency = surfaces[one.model]
    if partition.share_pct < latency.shares_pct[0]:
        return None
    limit_ms = min(room_ms, one.slo_ms / 2.0)
    most = min(one.max_batch, latency.measured_rows(partition.share_pct))
    batch = latency.largest_batch(limit_ms, partition.share_pct, most)
    return Slot(one.model, batch, 0.0, guest=True) if batch else None


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
        legal = larger and gpu.legal([p.share_pct for p in after.values()])
        if legal and holds_partitions(gpu, after.values(), profiles):
            here = after
        else:
            stuck.add(busiest.id)
    return here


def _busy(partition: Partition, surfaces: Mapping[str, Surface]) -> float:
    """The part of its time that a partition's planned rates take."""
    return sum(
        slot.rows_per_s
        / slot.batch
        * surfaces[slot.model].latency_ms(slot.batch, partition.share_pct)
        / 1000.0
        for slot in partition.slots
    )


def hosting_all(plan: Plan, demand: Sequence[Demand], fleet: Fleet, tables: Tables) -> Plan:
    """The plan with a slot of rate 0 for every model that has none and could meet its SLO."""
    partitions = list(plan.partitions) or [Partition(f"{g.id}:0", g.id, 100) for g in fleet.gpus]
    for one in demand:
        if any(slot.model == one.model for p in partitions for slot in p.slots):
            continue
        latency = tables.surface(one.model)
        homes = [
            p
            for p in partitions
            if p.share_pct >= latency.shares_pct[0]
            and latency.latency_ms(1, p.share_pct) <= one.slo_ms
            and _holds_one_more(p, one.model, partitions, fleet, tables)
        ]
        if homes:
            home = min(homes, key=lambda p: (len(p.slots), p.id))
            slot = Slot(one.model, 1, 0.0)
            partitions[partitions.index(home)] = replace(home, slots=(*home.slots, slot))
    return replace(plan, partitions=tuple(partitions))


def _holds_one_more(
    home: Partition, model: str, partitions: Sequence[Partition], fleet: Fleet, tables: Tables
) -> bool:
    """True if the accelerator's memory holds one more instance of the model."""
    more = replace(home, slots=(*home.slots, Slot(model, 1, 0.0)))
    here = [more if p is home else p for p in partitions if p.gpu == home.gpu]
    return holds_partitions(fleet.gpu(home.gpu), here, tables.profiles)
