"""Models that stand twice stand in two zones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan
from interlace.core.profile import Profiles
from interlace.engine.fleet_planner import matched
from interlace.fleet.fleet_gpus import node_of, own_models_of
from interlace.policy.base import Planner

#: So many swaps that part replicas are compared by what they cost.
_TRIES: Final = 32
_NOTHING: Final = Plan()


@dataclass(frozen=True, slots=True)
class ZonePlanner:
    """Another planner's plan, with equal accelerators swapped so that zones hold replicas apart.

    What stands in one zone alone is doubled where an accelerator is left.
    ``zones`` are by node; a node without one is a zone by itself. What is planned for an
    accelerator stays together, so neither shares nor rates change. What is swapped for what stands
    there may come together again, and is parted once more.
    """

    planner: Planner
    zones: Mapping[str, str]

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        plan = self.planner(demand, fleet, profiles, current)
        apart = spread(doubled(plan, fleet, self.zones), fleet, self.zones)
        return spread(matched(apart, current, fleet), fleet, self.zones, current)


def doubled(plan: Plan, fleet: Fleet, zones: Mapping[str, str]) -> Plan:
    """The plan with copies of models that are in one zone, on accelerators that it leaves idle.

    An idle accelerator copies all that an equal one in another zone holds, and takes half of its
    rates. The first choice is the accelerator with the most models without another replica: no swap
    can spread those. Of equals, it is the one with the most models that are in no second zone.
    """
    zone, kinds = _zones(fleet, zones), {gpu.id: replace(gpu, id="") for gpu in fleet.gpus}
    on: dict[str, list[Partition]] = {}
    zones_of: dict[str, set[str]] = {}
    for part in plan.partitions:
        on.setdefault(part.gpu, []).append(part)
        for model in own_models_of([part]):
            zones_of.setdefault(model, set()).add(zone[part.gpu])
    held = {gpu: own_models_of(parts) for gpu, parts in on.items()}
    hosts = Counter(model for models in held.values() for model in models)
    for idle in sorted(kinds.keys() - on.keys()):
        alone = {
            gpu: (
                sum(hosts[model] == 1 for model in models),
                sum(zones_of[model] == {zone[gpu]} for model in models),
            )
            for gpu, models in held.items()
            if kinds[gpu] == kinds[idle] and zone[gpu] != zone[idle]
        }
        source = max(alone, key=lambda gpu: (alone[gpu], gpu), default="")
        if not source or not alone[source][1]:
            continue
        hosts.update(held[source])
        on[source] = [_halved(part) for part in on[source]]
        on[idle] = [
            replace(part, id=f"{idle}:{place}", gpu=idle) for place, part in enumerate(on[source])
        ]
        for model in held[source]:
            zones_of[model].add(zone[idle])
    return replace(plan, partitions=tuple(part for parts in on.values() for part in parts))


def _halved(part: Partition) -> Partition:
    slots = tuple(replace(slot, rows_per_s=slot.rows_per_s / 2) for slot in part.slots)
    return replace(part, slots=slots)


def _zones(fleet: Fleet, zones: Mapping[str, str]) -> dict[str, str]:
    """The zone of each accelerator; a node without one is a zone by itself."""
    return {gpu.id: zones.get(node_of(gpu.id)) or f"node {node_of(gpu.id)}" for gpu in fleet.gpus}


def spread(plan: Plan, fleet: Fleet, zones: Mapping[str, str], current: Plan = _NOTHING) -> Plan:
    """The plan with accelerators of one kind swapped until no swap parts more replicas.

    Guests are no replicas: they are lent what is left.
    Each swap lowers the number of models that have two replicas or more, all in one zone; so it
    ends. Of the first that do, in order of names, the one is taken that parts models over the
    fewest nodes, then which loads the least beside what stands (``current``).
    """
    zone = _zones(fleet, zones)
    kinds = {gpu.id: replace(gpu, id="") for gpu in fleet.gpus}
    held: dict[str, set[str]] = {gpu: set() for gpu in zone}
    for part in plan.partitions:
        held[part.gpu].update(own_models_of([part]))
    replicas = _Replicas(held, zone)
    nodes = _Replicas(held, {gpu: node_of(gpu) for gpu in zone})
    place = {gpu: gpu for gpu in held}  # where what was planned for an accelerator goes
    loads = _Loads(plan, current, place)
    names = sorted(held)
    swapped = True
    while swapped:
        swapped = False
        for one in names:
            if not any(map(replicas.gathered, held[one])):
                continue
            alike = (other for other in names if kinds[other] == kinds[one])
            found = list(islice((o for o in alike if replicas.parts(one, o)), _TRIES))
            if not found:
                continue
            other = min(found, key=lambda o: (nodes.added(one, o), loads.added(one, o)))
            replicas.change(one, other)
            nodes.change(one, other)
            place[one], place[other] = place[other], place[one]
            swapped = True
    moved = tuple(replace(p, gpu=place[p.gpu]) for p in plan.partitions)
    return replace(plan, partitions=moved)


class _Loads:
    """Counts the models to load when accelerators' parts of a plan change their ``place``."""

    def __init__(self, plan: Plan, current: Plan, place: Mapping[str, str]) -> None:
        self._wanted, self._there, self._place = _contents(plan), _contents(current), place

    def added(self, one: str, other: str) -> int:
        """How many models more if two parts change places."""
        here, there = self._place[one], self._place[other]
        before = self._anew(one, here) + self._anew(other, there)
        return self._anew(one, there) + self._anew(other, here) - before

    def _anew(self, part: str, gpu: str) -> int:
        return (self._wanted[part] - self._there[gpu]).total()


def _contents(plan: Plan) -> defaultdict[str, Counter[tuple[int, str]]]:
    """What each accelerator holds: shares, and models in partitions of those."""
    found: defaultdict[str, Counter[tuple[int, str]]] = defaultdict(Counter)
    for part in plan.partitions:
        found[part.gpu].update((part.share_pct, slot.model) for slot in part.slots)
    return found


class _Replicas:
    """The zones of each model's replicas, from the zone of each accelerator."""

    def __init__(self, held: Mapping[str, AbstractSet[str]], zone: Mapping[str, str]) -> None:
        self._held = held
        self._zone = dict(zone)
        self._zones: dict[str, Counter[str]] = {}
        for gpu, models in held.items():
            for model in models:
                self._zones.setdefault(model, Counter())[zone[gpu]] += 1

    def gathered(self, model: str) -> bool:
        """Whether it stands on several accelerators, all of them in one zone."""
        counts = self._zones[model]
        return len(counts) == 1 and counts.total() > 1

    def parts(self, one: str, other: str) -> bool:
        """Whether it parts more replicas than it gathers to let two accelerators change zones."""
        apart = self._zone[one] != self._zone[other]
        return apart and self._gain(one, other, self.gathered) < 0

    def added(self, one: str, other: str) -> int:
        """In how many zones more their models are if two accelerators change theirs."""
        return self._gain(one, other, lambda model: len(self._zones[model]))

    def _gain(self, one: str, other: str, count: Callable[[str], int]) -> int:
        """What ``count`` gives more over the models that move then."""
        moving = self._held[one] ^ self._held[other]
        before = sum(map(count, moving))
        self.change(one, other)
        after = sum(map(count, moving))
        self.change(one, other)
        return after - before

    def change(self, one: str, other: str) -> None:
        """Let two accelerators change zones."""
        here, there = self._zone[one], self._zone[other]
        self._move(self._held[one] - self._held[other], here, there)
        self._move(self._held[other] - self._held[one], there, here)
        self._zone[one], self._zone[other] = there, here

    def _move(self, models: AbstractSet[str], old: str, new: str) -> None:
        for model in models:
            counts = self._zones[model]
            counts[new] += 1
            counts[old] -= 1
            if not counts[old]:
                del counts[old]
