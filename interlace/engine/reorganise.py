"""From the partitions there are to the plan that is wanted, one safe step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from interlace.core.messages import Carve, Load, Release, Unload, Work
from interlace.core.plan import Partition, Plan
from interlace.engine.partitions import Life, Live, Stay

Lives = Mapping[str, Live]


def relabel(plan: Plan, lives: Lives, serial: int) -> Plan:
    """The plan with the ids of live partitions wherever one of equal size can be kept.

    Among equals the one that already holds the most of the wanted models is kept, so that a new
    plan moves as little as it can. New ids are numbered from ``serial``.
    """
    free = {p.id: p for p in lives.values() if p.life in (Life.CARVING, Life.READY)}
    named: list[Partition] = []
    for wanted in sorted(plan.partitions, key=lambda p: -len(p.slots)):
        models = {slot.model for slot in wanted.slots}
        equals = [
            p for p in free.values() if (p.gpu, p.share_pct) == (wanted.gpu, wanted.share_pct)
        ]
        if equals:
            kept = max(equals, key=lambda p: (len(models & p.stays.keys()), p.id))
            del free[kept.id]
            named.append(replace(wanted, id=kept.id))
        else:
            named.append(replace(wanted, id=f"{wanted.gpu}.p{serial}"))
            serial += 1
    return replace(plan, partitions=tuple(sorted(named, key=lambda p: p.id)))


def steps(lives: Lives, target: Plan, overlapped: bool) -> Iterator[Work]:
    """The work that can be begun now to come closer to ``target``; nothing once it is reached.

    Level-triggered: it looks only at what is, so a new target, a failure or a lost partition
    needs no undoing. With ``overlapped`` new partitions are made and loaded beside the old ones,
    which go only when everything wanted stands (make before break); without, the old ones go
    first.
    """
    wanted = {p.id: p for p in target.partitions}
    leaving = [p for p in lives.values() if p.id not in wanted and p.life is not Life.GONE]
    if overlapped or not leaving:
        yield from _build(lives, wanted)
    if settled(lives, target) or not overlapped:
        yield from _retire(leaving)
        yield from _unload(lives, wanted)


def settled(lives: Lives, target: Plan) -> bool:
    """True when every wanted partition is ready with every wanted model loaded."""
    for wanted in target.partitions:
        live = lives.get(wanted.id)
        if live is None or live.life is not Life.READY:
            return False
        if not all(live.loaded(slot.model) for slot in wanted.slots):
            return False
    return True


def reached(lives: Lives, target: Plan) -> bool:
    """True when there is nothing but what the target wants."""
    ids = {p.id for p in target.partitions}
    if not settled(lives, target) or any(p.id not in ids for p in lives.values()):
        return False
    wanted = {p.id: {slot.model for slot in p.slots} for p in target.partitions}
    return all(p.stays.keys() <= wanted[p.id] for p in lives.values())


def _build(lives: Lives, wanted: Mapping[str, Partition]) -> Iterator[Work]:
    for partition in wanted.values():
        live = lives.get(partition.id)
        if live is None:
            yield Carve(partition.gpu, partition.id, partition.share_pct)
        elif live.accepting:  # nothing is sent to one whose process died
            for slot in partition.slots:
                if slot.model not in live.stays:
                    yield Load(partition.gpu, partition.id, slot.model)


def _retire(leaving: list[Live]) -> Iterator[Work]:
    for live in leaving:
        if live.life is Life.DRAINING and live.batch is None and not _busy(live):
            yield Release(live.gpu, live.id)


def _unload(lives: Lives, wanted: Mapping[str, Partition]) -> Iterator[Work]:
    for live in lives.values():
        if live.id not in wanted or not live.accepting:
            continue
        models = {slot.model for slot in wanted[live.id].slots}
        for model, stay in live.stays.items():
            if model not in models and stay is Stay.LOADED and live.running != model:
                yield Unload(live.gpu, live.id, model)


def _busy(live: Live) -> bool:
    return any(stay is not Stay.LOADED for stay in live.stays.values())
