"""From the partitions there are to the plan that is wanted, one safe step at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from interlace.core.hardware import Fleet
from interlace.core.messages import CreatePartition, Load, PartitionWork, ReleasePartition, Unload
from interlace.core.plan import Partition, Plan
from interlace.engine.live_partition import LivePartition, ModelState, PartitionState

LivePartitions = Mapping[str, LivePartition]
#: True if a model can be loaded into a partition now without exceeding its accelerator's memory.
FitsInMemory = Callable[[LivePartition, str], bool]


@dataclass(frozen=True, slots=True)
class Evictions:
    """What goes before the wanted stands: it is in the way.

    ``partitions`` and ``models`` (partition, model) are to be given up now. On the accelerators in
    ``shut`` nothing is carved until what leaves is gone.
    """

    partitions: frozenset[str] = frozenset()
    models: frozenset[tuple[str, str]] = frozenset()
    shut: frozenset[str] = frozenset()


def keep_partition_ids(plan: Plan, partitions: LivePartitions, serial: int) -> Plan:
    """The plan with the ids of live partitions wherever one of equal size can be kept.

    The pairs that already share the most models are matched first, so that a new plan moves as
    little as it can. New ids are numbered from ``serial``. It is the same where shares overlap:
    of several equal partitions each keeps the worker that holds its model.
    """
    standing = [
        p for p in partitions.values() if p.state in (PartitionState.CREATING, PartitionState.READY)
    ]
    pairs = sorted(
        (-_in_common(wanted, live), -len(wanted.slots), index, live.id)
        for index, wanted in enumerate(plan.partitions)
        for live in standing
        if (live.gpu, live.share_pct) == (wanted.gpu, wanted.share_pct)
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


def match_gpus(plan: Plan, partitions: LivePartitions, fleet: Fleet) -> Plan:
    """The plan with like accelerators exchanged, so that it resembles what stands already."""
    standing = [
        p for p in partitions.values() if p.state in (PartitionState.CREATING, PartitionState.READY)
    ]
    kinds = {gpu.id: replace(gpu, id="") for gpu in fleet.gpus}
    wanted = _by_gpu(plan.partitions)
    there = _by_gpu([live.as_plan() for live in standing])
    pairs = sorted(
        (-_likeness(wanted[old], there.get(new, ())), old != new, old, new)
        for old in wanted
        for new in kinds
        if kinds.get(old) == kinds[new]
    )
    moves: dict[str, str] = {}
    taken: set[str] = set()
    for _, _, old, new in pairs:
        if old not in moves and new not in taken:
            moves[old] = new
            taken.add(new)
    moved = tuple(replace(p, gpu=moves.get(p.gpu, p.gpu)) for p in plan.partitions)
    return replace(plan, partitions=moved)


def _by_gpu(partitions: Iterable[Partition]) -> dict[str, list[Partition]]:
    found: dict[str, list[Partition]] = {}
    for partition in partitions:
        found.setdefault(partition.gpu, []).append(partition)
    return found


def _likeness(wanted: Sequence[Partition], there: Sequence[Partition]) -> int:
    """Shares that are alike, and more for each model that need not move."""
    alike = Counter(p.share_pct for p in wanted) & Counter(p.share_pct for p in there)
    held = Counter((p.share_pct, s.model) for p in there for s in p.slots)
    asked = Counter((p.share_pct, s.model) for p in wanted for s in p.slots)
    return alike.total() + 2 * (held & asked).total()


def _in_common(wanted: Partition, live: LivePartition) -> int:
    return sum(1 for slot in wanted.slots if slot.model in live.model_states)


def next_steps(
    partitions: LivePartitions, target: Plan, first: Evictions, fits: FitsInMemory
) -> Iterator[PartitionWork]:
    """The work that can be begun now to come closer to ``target``; nothing once it is reached.

    Level-triggered: it looks only at what is, so a new target, a failure or a lost partition
    needs no undoing. New partitions are made and loaded beside the old ones, which go only when
    everything wanted stands (make before break), except for what ``first`` says must go first.
    ``fits`` is asked before each load.
    """
    wanted = {p.id: p for p in target.partitions}
    leaving = [
        p for p in partitions.values() if p.id not in wanted and p.state is not PartitionState.GONE
    ]
    # Releases come first: devices carry work out in order, and what follows may need the memory.
    yield from _retire(leaving)
    yield from _unload(partitions, wanted, first, settled(partitions, target))
    yield from _build(partitions, wanted, first, fits)


def settled(partitions: LivePartitions, target: Plan) -> bool:
    """True when every wanted partition is ready with every wanted model loaded."""
    for wanted in target.partitions:
        live = partitions.get(wanted.id)
        if live is None or live.state is not PartitionState.READY:
            return False
        if not all(live.loaded(slot.model) for slot in wanted.slots):
            return False
    return True


def reached(partitions: LivePartitions, target: Plan) -> bool:
    """True when there is nothing but what the target wants."""
    ids = {p.id for p in target.partitions}
    if not settled(partitions, target) or any(p.id not in ids for p in partitions.values()):
        return False
    wanted = {p.id: {slot.model for slot in p.slots} for p in target.partitions}
    return all(p.model_states.keys() <= wanted[p.id] for p in partitions.values())


def _going(
    partitions: LivePartitions, wanted: Mapping[str, Partition], gpu: str
) -> tuple[str, ...]:
    """Partitions of an accelerator that are there and not wanted."""
    there = (p for p in partitions.values() if p.gpu == gpu and p.state is not PartitionState.GONE)
    return tuple(sorted(live.id for live in there if live.id not in wanted))


def _build(
    partitions: LivePartitions,
    wanted: Mapping[str, Partition],
    first: Evictions,
    fits: FitsInMemory,
) -> Iterator[PartitionWork]:
    for partition in wanted.values():
        live = partitions.get(partition.id)
        if live is None:
            if partition.gpu not in first.shut:
                going = _going(partitions, wanted, partition.gpu)
                yield CreatePartition(partition.gpu, partition.id, partition.share_pct, going)
        elif live.accepting:  # nothing is sent to one whose process died
            for slot in partition.slots:
                if slot.model not in live.model_states and fits(live, slot.model):
                    yield Load(partition.gpu, partition.id, slot.model)


def _retire(leaving: list[LivePartition]) -> Iterator[PartitionWork]:
    for live in leaving:
        if live.state is PartitionState.DRAINING and live.batch is None and not _busy(live):
            yield ReleasePartition(live.gpu, live.id)


def _unload(
    partitions: LivePartitions, wanted: Mapping[str, Partition], first: Evictions, switched: bool
) -> Iterator[PartitionWork]:
    for live in partitions.values():
        if live.id not in wanted or not live.accepting:
            continue
        models = {slot.model for slot in wanted[live.id].slots}
        for model, stay in live.model_states.items():
            goes = switched or (live.id, model) in first.models
            idle = all(one.run.batch.model != model for one in live.batches)
            if goes and model not in models and stay is ModelState.LOADED and idle:
                yield Unload(live.gpu, live.id, model)


def _busy(live: LivePartition) -> bool:
    return any(stay is not ModelState.LOADED for stay in live.model_states.values())
