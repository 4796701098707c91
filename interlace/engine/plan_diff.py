"""The difference between the partitions there are and a plan, as work to begin now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from interlace.core.messages import CreatePartition, Load, PartitionWork, ReleasePartition, Unload
from interlace.core.plan import Partition, Plan
from interlace.engine.live_partition import LivePartition, ModelState, PartitionState

LivePartitions = Mapping[str, LivePartition]
#: True if a model can be loaded into a partition now without exceeding its accelerator's memory.
FitsInMemory = Callable[[LivePartition, str], bool]


@dataclass(frozen=True, slots=True)
class Evictions:
    """What is given up before the plan can be built, since it is in the way.

    ``partitions``, and ``models`` as (partition, model), are given up now. No partition is created
    on the accelerators in ``closed`` until everything unwanted on them is gone.
    """

    partitions: frozenset[str] = frozenset()
    models: frozenset[tuple[str, str]] = frozenset()
    closed: frozenset[str] = frozenset()


def keep_partition_ids(plan: Plan, partitions: LivePartitions, serial: int) -> Plan:
    """The plan with the ids of live partitions where one of equal size on the same GPU is kept.

    Pairs that share the most models are matched first, so that as few models as possible are
    loaded. Other partitions get new ids, numbered from ``serial``.
    """
    alike: dict[tuple[str, int], list[LivePartition]] = {}
    for live in standing(partitions):
        alike.setdefault((live.gpu, live.share_pct), []).append(live)
    pairs = sorted(
        (-_in_common(wanted, live), -len(wanted.slots), index, live.id)
        for index, wanted in enumerate(plan.partitions)
        for live in alike.get((wanted.gpu, wanted.share_pct), ())
    )
    kept: dict[int, str] = {}
    taken: set[str] = set()
    for _, _, index, live_id in pairs:
        if index not in kept and live_id not in taken:
            kept[index] = live_id
            taken.add(live_id)
    named: list[Partition] = []
    for index, wanted in enumerate(plan.partitions):
        if index not in kept:
            kept[index] = f"{wanted.gpu}.p{serial}"
            serial += 1
        named.append(replace(wanted, id=kept[index]))
    return replace(plan, partitions=tuple(sorted(named, key=lambda p: p.id)))


def standing(partitions: LivePartitions) -> list[LivePartition]:
    """Those that are there, or will be."""
    states = (PartitionState.CREATING, PartitionState.READY)
    return [live for live in partitions.values() if live.state in states]


def _in_common(wanted: Partition, live: LivePartition) -> int:
    return sum(1 for slot in wanted.slots if slot.model in live.model_states)


def next_steps(
    partitions: LivePartitions, target: Plan, evictions: Evictions, fits: FitsInMemory
) -> Iterator[PartitionWork]:
    """The work that can begin now to come closer to ``target``; none once it is reached.

    Level-triggered: it depends on the present state alone, so a new target, a failure or a lost
    partition needs no undoing. New partitions are created and loaded next to the old ones, which
    are released once all that is wanted is loaded (make before break), except for ``evictions``.
    ``fits`` is asked before each load.
    """
    wanted = {p.id: p for p in target.partitions}
    leaving = [
        p for p in partitions.values() if p.id not in wanted and p.state is not PartitionState.GONE
    ]
    # Releases come first: devices carry work out in order, and what follows may need the memory.
    yield from _retire(leaving)
    yield from _unload(partitions, wanted, evictions, settled(partitions, target))
    yield from _build(partitions, wanted, evictions, fits)


def settled(partitions: LivePartitions, target: Plan) -> bool:
    """True if every wanted partition is ready and has every wanted model loaded."""
    for wanted in target.partitions:
        live = partitions.get(wanted.id)
        if live is None or live.state is not PartitionState.READY:
            return False
        if not all(live.loaded(slot.model) for slot in wanted.slots):
            return False
    return True


def reached(partitions: LivePartitions, target: Plan) -> bool:
    """True if ``target`` is settled and nothing else is left."""
    ids = {p.id for p in target.partitions}
    if not settled(partitions, target) or any(p.id not in ids for p in partitions.values()):
        return False
    wanted = {p.id: {slot.model for slot in p.slots} for p in target.partitions}
    return all(p.model_states.keys() <= wanted[p.id] for p in partitions.values())


def _build(
    partitions: LivePartitions,
    wanted: Mapping[str, Partition],
    evictions: Evictions,
    fits: FitsInMemory,
) -> Iterator[PartitionWork]:
    going: dict[str, list[str]] = {}  # the unwanted ones of an accelerator that still exist
    for live in partitions.values():
        if live.id not in wanted and live.state is not PartitionState.GONE:
            going.setdefault(live.gpu, []).append(live.id)
    for partition in wanted.values():
        host = partitions.get(partition.id)
        if host is None:
            if partition.gpu not in evictions.closed:
                leave = tuple(sorted(going.get(partition.gpu, ())))
                yield CreatePartition(partition.gpu, partition.id, partition.share_pct, leave)
        elif host.accepting:  # nothing is sent to one whose process died
            for slot in partition.slots:
                if slot.model not in host.model_states and fits(host, slot.model):
                    yield Load(partition.gpu, partition.id, slot.model)


def _retire(leaving: list[LivePartition]) -> Iterator[PartitionWork]:
    for live in leaving:
        if live.state is PartitionState.DRAINING and live.batch is None and not _busy(live):
            yield ReleasePartition(live.gpu, live.id)


def _unload(
    partitions: LivePartitions,
    wanted: Mapping[str, Partition],
    evictions: Evictions,
    switched: bool,
) -> Iterator[PartitionWork]:
    if not switched and not evictions.models:
        return
    for live in partitions.values():
        if live.id not in wanted or not live.accepting:
            continue
        models = {slot.model for slot in wanted[live.id].slots}
        for model, state in live.model_states.items():
            goes = switched or (live.id, model) in evictions.models
            idle = all(one.run.batch.model != model for one in live.batches)
            if goes and model not in models and state is ModelState.LOADED and idle:
                yield Unload(live.gpu, live.id, model)


def _busy(live: LivePartition) -> bool:
    return any(state is not ModelState.LOADED for state in live.model_states.values())
