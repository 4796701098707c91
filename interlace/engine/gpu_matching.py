"""Which accelerator takes which part of a new plan, so that little is loaded anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from interlace.core.hardware import Fleet
from interlace.core.plan import Partition, Plan
from interlace.engine.plan_diff import LivePartitions, standing

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
    """The plan with equal accelerators swapped so that it resembles what is there already.

    Two accelerators are alike by the number of equal shares, plus two for each model that need not
    be loaded again. The likest pair is matched first; of pairs that are as like those that stay
    where they are, then by name. Only pairs that have a model in common are looked at one by one:
    the others are told apart by their shares alone, of which there are few sets.
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
