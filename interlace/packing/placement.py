"""Chosen patterns placed on accelerators: layouts filled, memory respected, moves avoided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.packing.layouts import Layout, Pattern
from interlace.packing.queueing import Floats
from interlace.perf.memory import needed_bytes, room_bytes

#: Accelerators that a partition is tried on: those that are there already, newest first.
_TRIED: Final = 48


@dataclass(slots=True, eq=False)
class FilledGpu:
    """One accelerator while it is filled, to a given layout if there is one."""

    gpu: Gpu
    patterns: list[Pattern] = field(default_factory=list)
    layout: Counter[int] | None = None
    used_pct: int = 0

    def put(self, pattern: Pattern) -> None:
        self.patterns.append(pattern)
        self.used_pct += pattern.share_pct

    def takes(self, share_pct: int) -> bool:
        """True if one more partition of that share may stand here."""
        if self.used_pct + share_pct > 100:
            return False
        if self.layout is None:
            return self.gpu.legal([*(p.share_pct for p in self.patterns), share_pct])
        return sum(p.share_pct == share_pct for p in self.patterns) < self.layout[share_pct]


@dataclass(frozen=True, slots=True)
class PlacementInput:
    """The models that patterns refer to, their profiles, and the plan in force."""

    demand: Sequence[Demand]
    profiles: Profiles
    current: Plan


def place(
    chosen: Counter[Pattern],
    gpus: Sequence[Gpu],
    layouts: Sequence[Layout],
    question: PlacementInput,
) -> tuple[list[FilledGpu], list[Pattern]]:
    """Patterns on accelerators, and those that found no place.

    First largest shares first, each to where the current plan has it, else to the fullest that has
    the share and the memory. If that takes more accelerators than the ``layouts`` that were
    chosen, every accelerator is filled to its layout instead.
    """
    free = _filled([FilledGpu(gpu) for gpu in gpus], chosen, question)
    if not free[1] and sum(bool(home.patterns) for home in free[0]) <= len(layouts):
        return free
    cut = [
        FilledGpu(gpu, layout=Counter(layouts[i]) if i < len(layouts) else None)
        for i, gpu in enumerate(gpus)
    ]
    strict = _filled(cut, chosen, question)
    return min(free, strict, key=lambda one: (len(one[1]), sum(bool(h.patterns) for h in one[0])))


def _filled(
    homes: list[FilledGpu], chosen: Counter[Pattern], question: PlacementInput
) -> tuple[list[FilledGpu], list[Pattern]]:
    everything = sorted(chosen.elements(), key=lambda p: (-p.share_pct, p.turns))
    lost = []
    rest = _kept(everything, homes, question)
    least_pct = everything[-1].share_pct if everything else 0
    begun = [home for home in homes if home.patterns]
    empty = [home for home in reversed(homes) if not home.patterns]
    for pattern in rest:
        home = _best([h for h in begun if h.used_pct + pattern.share_pct <= 100], pattern, question)
        if home is None:
            fitting = (i for i in reversed(range(len(empty))) if _fits(empty[i], pattern, question))
            index = next(fitting, None)
            if index is None:
                lost.append(pattern)
                continue
            home = empty.pop(index)
            begun.append(home)
        home.put(pattern)
        if home.used_pct + least_pct > 100:
            begun.remove(home)
    return homes, lost


def _best(
    begun: Sequence[FilledGpu], pattern: Pattern, question: PlacementInput
) -> FilledGpu | None:
    """The accelerator that has most of its models already, then the fullest."""
    fitting = [h for h in begun[-_TRIED:] if _fits(h, pattern, question)]
    return max(fitting, key=lambda h: (_shared(h, pattern), h.used_pct), default=None)


def partitions(
    homes: Sequence[FilledGpu], demand: Sequence[Demand], served: Sequence[float], current: Plan
) -> tuple[Partition, ...]:
    """The homes as partitions; each model's rate is spread in proportion to what each can serve.

    ``served`` is what the plan promises of each model. A partition of the same share and models on
    the same accelerator keeps its id.
    """
    able = capacity([p for h in homes for p in h.patterns], len(demand))
    part = [s / c if c > 0 else 0.0 for s, c in zip(served, able.tolist(), strict=True)]
    names = _PartitionIds(current)
    return tuple(
        _partition(names, home.gpu.id, pattern, demand, part)
        for home in homes
        for pattern in home.patterns
    )


def capacity(patterns: Sequence[Pattern], count: int) -> Floats:
    """What the patterns serve of each of ``count`` models."""
    able = np.zeros(count)
    for pattern in patterns:
        for (model, _), rate in zip(pattern.turns, pattern.rows_per_s, strict=True):
            able[model] += rate
    return able


def _partition(
    names: _PartitionIds,
    gpu: str,
    pattern: Pattern,
    demand: Sequence[Demand],
    part: Sequence[float],
) -> Partition:
    turns = zip(pattern.turns, pattern.rows_per_s, strict=True)
    slots = tuple(Slot(demand[m].model, batch, rate * part[m]) for (m, batch), rate in turns)
    name = names.take(gpu, pattern.share_pct, [slot.model for slot in slots])
    return Partition(name, gpu, pattern.share_pct, slots)


def without_tiny_turns(patterns: Counter[Pattern], rows_per_s: Sequence[float]) -> Counter[Pattern]:
    """The patterns without each model's smallest turns, where the others serve its whole rate.

    A model that is in a partition for almost nothing still draws its queue there.
    """
    spare = [-rate for rate in rows_per_s]
    turns = []
    for pattern, count in patterns.items():
        for index, ((model, _), rate) in enumerate(
            zip(pattern.turns, pattern.rows_per_s, strict=True)
        ):
            spare[model] += rate * count
            turns.append((rate * count, pattern, index, model))
    dropped: set[tuple[Pattern, int]] = set()
    for rate, pattern, index, model in sorted(turns, key=lambda turn: (turn[0], turn[2], turn[3])):
        if rate <= spare[model]:
            spare[model] -= rate
            dropped.add((pattern, index))
    kept: Counter[Pattern] = Counter()
    for pattern, count in patterns.items():
        large = [i for i in range(len(pattern.turns)) if (pattern, i) not in dropped]
        if large:
            less = tuple(pattern.turns[i] for i in large)
            rates = tuple(pattern.rows_per_s[i] for i in large)
            kept[replace(pattern, turns=less, rows_per_s=rates)] += count
    return kept


class _PartitionIds:
    """Ids of partitions: those of the current plan where they fit, fresh ones otherwise."""

    def __init__(self, current: Plan) -> None:
        self._free: dict[tuple[str, int], list[Partition]] = {}
        for part in current.partitions:
            self._free.setdefault((part.gpu, part.share_pct), []).append(part)
        self._used = {p.id for p in current.partitions}

    def take(self, gpu: str, share_pct: int, models: Sequence[str]) -> str:
        """An id for a partition of that share and those models."""
        here = self._free.get((gpu, share_pct))
        if here:
            best = max(here, key=lambda p: len({s.model for s in p.slots} & set(models)))
            here.remove(best)
            return best.id
        number = 0
        while f"{gpu}:{number}" in self._used:
            number += 1
        self._used.add(f"{gpu}:{number}")
        return f"{gpu}:{number}"


def _kept(
    patterns: Sequence[Pattern], homes: Sequence[FilledGpu], question: PlacementInput
) -> list[Pattern]:
    """Put patterns where the current plan has them, and return the others.

    A place has the same share. It has exactly the same models, or else the most models in common.
    """
    by_id = {home.gpu.id: home for home in homes}
    free = _StandingPlaces([p for p in question.current.partitions if p.gpu in by_id])
    rest = patterns
    for alike in (free.same, free.like):
        left = []
        for pattern in rest:
            models = frozenset(question.demand[m].model for m, _ in pattern.turns)
            places = (place for one in alike(pattern.share_pct, models) for place in one)
            before = next((p for p in places if _fits(by_id[p.gpu], pattern, question)), None)
            if before is None:
                left.append(pattern)
            else:
                free.take(before)
                by_id[before.gpu].put(pattern)
        rest = left
    return list(rest)


class _StandingPlaces:
    """Partitions of the current plan that nothing was put in the place of yet."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self._of: dict[tuple[int, frozenset[str]], list[Partition]] = {}
        self._with: dict[tuple[int, str], list[frozenset[str]]] = {}
        for part in partitions:
            models = frozenset(slot.model for slot in part.slots)
            if (part.share_pct, models) not in self._of:
                for model in models:
                    self._with.setdefault((part.share_pct, model), []).append(models)
            self._of.setdefault((part.share_pct, models), []).append(part)

    def same(self, share_pct: int, models: frozenset[str]) -> list[list[Partition]]:
        """Those of exactly these models."""
        return [self._of.get((share_pct, models), [])]

    def like(self, share_pct: int, models: frozenset[str]) -> list[list[Partition]]:
        """Those of some of these models, of most first."""
        shared = Counter(one for m in models for one in self._with.get((share_pct, m), ()))
        return [self._of[share_pct, one] for one, _ in shared.most_common()]

    def take(self, partition: Partition) -> None:
        """Something was put in its place."""
        models = frozenset(slot.model for slot in partition.slots)
        self._of[partition.share_pct, models].remove(partition)


def _fits(home: FilledGpu, pattern: Pattern, question: PlacementInput) -> bool:
    if not home.takes(pattern.share_pct):
        return False
    mine = [question.demand[m].model for m, _ in pattern.turns]
    walls = dict(home.gpu.walls)
    if pattern.share_pct in walls:
        return needed_bytes(mine, question.profiles, home.gpu) <= walls[pattern.share_pct]
    here = [question.demand[m].model for p in home.patterns for m, _ in p.turns]
    return needed_bytes([*here, *mine], question.profiles, home.gpu) <= room_bytes(home.gpu)


def _shared(home: FilledGpu, pattern: Pattern) -> int:
    """Models whose weights are there already."""
    here = {m for p in home.patterns for m, _ in p.turns}
    return len(here & {m for m, _ in pattern.turns})
