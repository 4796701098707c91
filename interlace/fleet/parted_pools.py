"""Pools that several nodes share have a queue on each: every part gets the hosts that it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil, inf
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan
from interlace.core.profile import Profiles
from interlace.fleet.fleet_gpus import node_of
from interlace.packing.batch_options import batch_options, demand_arrays
from interlace.packing.pools import hosts_together
from interlace.perf.memory import holds_partitions
from interlace.perf.tables import Tables
from interlace.policy.base import Planner

#: Halvings of the part of a pool's rates that is left to hosts which cannot be more.
_STEPS: Final = 8
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PartedPools:
    """Another planner's plan, with more hosts where nodes part a pool; ``profiles`` by kind.

    That planner has swapped accelerators for what stands there: later it might part pools.
    """

    planner: Planner
    profiles: Mapping[str, Profiles]

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        plan = self.planner(demand, fleet, profiles, current)
        if plan.overlapping:
            return plan
        return resized(plan, demand, fleet, self.profiles, current)


def resized(
    plan: Plan,
    demand: Sequence[Demand],
    fleet: Fleet,
    profiles: Mapping[str, Profiles],
    current: Plan,
) -> Plan:
    """The plan with hosts added, so that each node's part of a pool keeps its part of the rates.

    Few hosts even arrivals out less than many (``packing.pool_hosts``). Where a node has no room
    for more, the rest of its rates goes to larger parts; the largest takes what is left, whether
    it has the hosts for it or not. What ``current`` has in addition is added there again.
    """
    rooms = _Rooms(plan, fleet, profiles, current)
    wanted = {one.model: one for one in demand}
    made = {part.id: part for part in plan.partitions}
    for pool in _pools(plan, rooms.gpus):
        known = profiles.get(pool.kind, {})
        if not pool.models <= known.keys() & wanted.keys():
            continue
        asked = _Asked([wanted[m] for m in sorted(pool.models)], pool.share_pct, Tables(known))
        for part in _sized(pool, asked, rooms):
            made[part.id] = part
    return replace(plan, partitions=tuple(made.values()))


@dataclass(frozen=True, slots=True)
class _PartedPool:
    """Partitions of one share and kind that several nodes host, and that host all of its models."""

    kind: str
    share_pct: int
    models: frozenset[str]
    by_node: Mapping[str, list[Partition]]


def _pools(plan: Plan, gpus: Mapping[str, Gpu]) -> list[_PartedPool]:
    """Those of several models which stand in no other partition: alone no queue evens out."""
    found: dict[tuple[str, int, frozenset[str]], dict[str, list[Partition]]] = {}
    stands: Counter[str] = Counter()
    for part in plan.partitions:
        models = frozenset(slot.model for slot in part.slots if not slot.guest)
        key = gpus[part.gpu].kind, part.share_pct, models
        stands.update(models if key not in found else ())
        found.setdefault(key, {}).setdefault(node_of(part.gpu), []).append(part)
    return [
        _PartedPool(*key, by_node)
        for key, by_node in found.items()
        if len(by_node) > 1 and len(key[2]) > 1 and all(stands[model] == 1 for model in key[2])
    ]


class _Asked:
    """What a pool is asked for, and how many hosts any part of that takes."""

    def __init__(self, demand: Sequence[Demand], share_pct: int, tables: Tables) -> None:
        self._demand = demand
        self._options = batch_options(
            demand, [tables.surface(one.model) for one in demand], share_pct
        )

    def hosts(self, part: float) -> int:
        """That keep the promises for this part of the rates as one queue."""
        some = [replace(one, rows_per_s=one.rows_per_s * part) for one in self._demand]
        needed = hosts_together(self._options, demand_arrays(some))
        return ceil(needed - _ROUNDING) if needed < inf else 0

    def most(self, hosts: int, part: float) -> float:
        """The largest part of the rates, up to ``part``, that so many hosts keep."""
        low, high = 0.0, part
        for _ in range(_STEPS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if self.hosts(middle) <= hosts else (low, middle)
        return low


def _sized(pool: _PartedPool, asked: _Asked, rooms: _Rooms) -> list[Partition]:
    """The pool's partitions, and those that are added, each with its part of the rates."""
    found: list[Partition] = []
    rates = {node: _rows_per_s(parts) for node, parts in pool.by_node.items()}
    total = sum(rates.values(), Counter[str]())
    left = 0.0
    *smaller, largest = sorted(pool.by_node, key=lambda node: (len(pool.by_node[node]), node))
    for node in (*smaller, largest):
        parts = list(pool.by_node[node])
        asks = left + rates[node].total() / max(total.total(), _ROUNDING)
        needed = asked.hosts(asks)
        while len(parts) < needed and (more := rooms.more(node, parts[0])):
            parts.append(more)
        fits = node == largest or needed <= len(parts)
        kept = asks if fits else asked.most(len(parts), asks)
        left = asks - kept
        found += [_rated(one, {m: total[m] * kept / len(parts) for m in total}) for one in parts]
    return found


def _rows_per_s(parts: Sequence[Partition]) -> Counter[str]:
    """What partitions are to serve of each model."""
    found: Counter[str] = Counter()
    for slot in (slot for part in parts for slot in part.slots):
        found[slot.model] += slot.rows_per_s  # type: ignore[assignment]
    return found


def _rated(part: Partition, rows_per_s: Mapping[str, float]) -> Partition:
    slots = (replace(s, rows_per_s=rows_per_s.get(s.model, s.rows_per_s)) for s in part.slots)
    return replace(part, slots=tuple(slots))


class _Rooms:
    """What is left of each node's accelerators."""

    def __init__(
        self, plan: Plan, fleet: Fleet, profiles: Mapping[str, Profiles], current: Plan
    ) -> None:
        self.gpus = {gpu.id: gpu for gpu in fleet.gpus}
        self._profiles = profiles
        self._on: dict[str, list[Partition]] = {gpu: [] for gpu in self.gpus}
        for part in plan.partitions:
            self._on[part.gpu].append(part)
        self._of: dict[str, list[str]] = {}
        for gpu in self.gpus:
            self._of.setdefault(node_of(gpu), []).append(gpu)
        self._ids = {part.id for part in plan.partitions}
        self._stood = Counter(map(_place, current.partitions))

    def more(self, node: str, like: Partition) -> Partition | None:
        """One more of these partitions on a node, where it stood or others do, if there is room."""
        models = tuple(slot for slot in like.slots if not slot.guest)
        kind = self.gpus[like.gpu].kind
        found = None
        for gpu in (one for one in self._of[node] if self.gpus[one].kind == kind):
            name = next(f"{gpu}:{i}" for i in count() if f"{gpu}:{i}" not in self._ids)
            one = Partition(name, gpu, like.share_pct, models, like.duty_ms)
            if self._fits(one) and (found is None or self._worth(one) > self._worth(found)):
                found = one
        if found is not None:
            self._ids.add(found.id)
            self._on[found.gpu].append(found)
        return found

    def _worth(self, one: Partition) -> tuple[bool, int]:
        here = Counter(map(_place, self._on[one.gpu]))[_place(one)]
        return self._stood[_place(one)] > here, here

    def _fits(self, one: Partition) -> bool:
        gpu, there = self.gpus[one.gpu], [*self._on[one.gpu], one]
        legal = gpu.legal([part.share_pct for part in there])
        return legal and holds_partitions(gpu, there, self._profiles[gpu.kind])


def _place(part: Partition) -> tuple[str, int, frozenset[str]]:
    """What makes partitions alike, and where it is."""
    return part.gpu, part.share_pct, frozenset(s.model for s in part.slots if not s.guest)
