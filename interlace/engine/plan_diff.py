"""A plan matched with what stands, and the difference as work to begin now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from interlace.core.hardware import Fleet
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
        if live.state is PartitionState.DRAINING and not live.batches and not _busy(live):
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


_Held = tuple[int, str]  #: a share, and a model in a partition of it


class _Content(NamedTuple):
    """What stands, or is to stand, on an accelerator: equal ones are interchangeable."""

    kind: int
    shares_pct: tuple[int, ...]
    held: tuple[_Held, ...]


class _Pool:
    """Accelerators in order of names, each until it is taken (from here or elsewhere)."""

    def __init__(self) -> None:
        self._gpus: list[str] = []  #: the first last
        self._sorted = False

    def add(self, gpu: str) -> None:
        self._gpus.append(gpu)

    def first(self, taken: set[str]) -> str | None:
        """The first that is not taken."""
        if not self._sorted:
            self._gpus.sort(reverse=True)
            self._sorted = True
        while self._gpus and self._gpus[-1] in taken:
            self._gpus.pop()
        return self._gpus[-1] if self._gpus else None


def match_gpus(plan: Plan, partitions: LivePartitions, fleet: Fleet) -> Plan:
    """The plan with equal accelerators swapped so that it resembles the current partitions.

    The likeness of two accelerators is the number of equal shares, plus two for each model that
    need not be loaded again. The likest pair is matched first; of equal pairs those that stay where
    they are, then by name. Only pairs that have a model in common are looked at one by one. Others
    differ only by their sets of shares, and these are few.
    """
    kind_of: dict[object, int] = {}
    kinds = {g.id: kind_of.setdefault(replace(g, id=""), len(kind_of)) for g in fleet.gpus}
    wanted = _contents(plan.partitions, kinds)
    there = _contents([live.as_plan() for live in standing(partitions)], kinds)
    free = _Free({gpu: there.get(gpu, _Content(kinds[gpu], (), ())) for gpu in kinds})
    places = {content: free.places(content) for content in set(wanted.values())}
    moves: dict[str, str] = {}
    taken: set[str] = set()
    for level in sorted({level for found in places.values() for level in found}, reverse=True):
        left = [gpu for gpu in sorted(wanted) if gpu not in moves and level in places[wanted[gpu]]]
        for gpu in left:
            if gpu not in taken and _likeness(wanted[gpu], free.contents[gpu]) == level:
                moves[gpu] = gpu
                taken.add(gpu)
        for gpu in left:
            if gpu in moves:
                continue
            heads = [pool.first(taken) for pool in places[wanted[gpu]][level]]
            new = min((head for head in heads if head is not None), default=None)
            if new is not None:
                moves[gpu] = new
                taken.add(new)
    moved = tuple(replace(p, gpu=moves.get(p.gpu, p.gpu)) for p in plan.partitions)
    return replace(plan, partitions=moved)


class _Free:
    """The accelerators there are, by what stands on them."""

    def __init__(self, contents: Mapping[str, _Content]) -> None:
        self.contents = contents
        self._alike: dict[_Content, _Pool] = {}
        self._by_shares: dict[tuple[int, tuple[int, ...]], _Pool] = {}
        for gpu, content in contents.items():
            self._alike.setdefault(content, _Pool()).add(gpu)
            self._by_shares.setdefault(content[:2], _Pool()).add(gpu)
        self._holders: dict[tuple[int, _Held], list[tuple[_Content, int]]] = {}
        for content in self._alike:
            for held, count in Counter(content.held).items():
                self._holders.setdefault((content.kind, held), []).append((content, count))

    def places(self, wanted: _Content) -> dict[int, list[_Pool]]:
        """By likeness: where this could go. Once the likelier are taken, a pool of equal shares has
        none left that holds a model of it.
        """
        found: dict[int, list[_Pool]] = {}
        common: Counter[_Content] = Counter()
        for held, asked in Counter(wanted.held).items():
            for content, count in self._holders.get((wanted.kind, held), ()):
                common[content] += min(asked, count)
        for content, models in common.items():
            alike = _equal_shares(wanted.shares_pct, content.shares_pct) + 2 * models
            found.setdefault(alike, []).append(self._alike[content])
        for (kind, shares_pct), pool in self._by_shares.items():
            if kind == wanted.kind:
                alike = _equal_shares(wanted.shares_pct, shares_pct)
                found.setdefault(alike, []).append(pool)
        return found


def _contents(partitions: Iterable[Partition], kinds: Mapping[str, int]) -> dict[str, _Content]:
    on: dict[str, list[Partition]] = {}
    for part in partitions:
        if part.gpu in kinds:
            on.setdefault(part.gpu, []).append(part)
    return {
        gpu: _Content(
            kinds[gpu],
            tuple(sorted(part.share_pct for part in parts)),
            tuple(sorted((part.share_pct, slot.model) for part in parts for slot in part.slots)),
        )
        for gpu, parts in on.items()
    }


def _equal_shares(one: Iterable[int], other: Iterable[int]) -> int:
    return (Counter(one) & Counter(other)).total()


def _likeness(one: _Content, other: _Content) -> int:
    models = (Counter(one.held) & Counter(other.held)).total()
    return _equal_shares(one.shares_pct, other.shares_pct) + 2 * models
