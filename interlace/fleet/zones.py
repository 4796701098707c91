"""Models that stand twice stand in two zones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan
from interlace.core.profile import Profiles
from interlace.engine.fleet_planner import matched
from interlace.fleet.fleet_gpus import node_of, own_models_of
from interlace.policy.base import Planner


@dataclass(frozen=True, slots=True)
class ZonePlanner:
    """Another planner's plan, with equal accelerators swapped so that zones hold replicas apart.

    What stands in one zone alone is doubled where an accelerator is left.
    ``zones`` are by node; a node without one is a zone by itself. What is planned for an
    accelerator stays together, so neither shares nor rates change. Accelerators are swapped for
    what stands there before replicas are parted, and then within zones alone.
    """

    planner: Planner
    zones: Mapping[str, str]

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        plan = matched(self.planner(demand, fleet, profiles, current), current, fleet)
        apart = spread(doubled(plan, fleet, self.zones), fleet, self.zones)
        return _matched_within(apart, current, fleet, self.zones)


def _matched_within(plan: Plan, current: Plan, fleet: Fleet, zones: Mapping[str, str]) -> Plan:
    """The plan with equal accelerators of a zone swapped so that it resembles ``current``."""
    zone, gpus = _zones(fleet, zones), defaultdict[str, list[Gpu]](list)
    for gpu in fleet.gpus:
        gpus[zone[gpu.id]].append(gpu)
    wanted, there = _by_zone(plan, zone), _by_zone(current, zone)
    made = [
        matched(Plan(tuple(wanted[name])), Plan(tuple(there[name])), Fleet(tuple(own)))
        for name, own in gpus.items()
    ]
    return replace(plan, partitions=tuple(part for one in made for part in one.partitions))


def _by_zone(plan: Plan, zone: Mapping[str, str]) -> defaultdict[str, list[Partition]]:
    found: defaultdict[str, list[Partition]] = defaultdict(list)
    for part in plan.partitions:
        if part.gpu in zone:  # what stands may have been lost
            found[zone[part.gpu]].append(part)
    return found


def doubled(plan: Plan, fleet: Fleet, zones: Mapping[str, str]) -> Plan:
    """The plan with copies, on accelerators that have no part in it, of what stands once.

    Each takes all that an equal one in another zone holds, and half of its rates: first where most
    models stand in no second zone.
    """
    zone, kinds = _zones(fleet, zones), {gpu.id: replace(gpu, id="") for gpu in fleet.gpus}
    on: dict[str, list[Partition]] = {}
    zones_of: dict[str, set[str]] = {}
    for part in plan.partitions:
        on.setdefault(part.gpu, []).append(part)
        for model in own_models_of([part]):
            zones_of.setdefault(model, set()).add(zone[part.gpu])
    held = {gpu: own_models_of(parts) for gpu, parts in on.items()}
    for idle in sorted(kinds.keys() - on.keys()):
        alone = {
            gpu: sum(zones_of[model] == {zone[gpu]} for model in models)
            for gpu, models in held.items()
            if kinds[gpu] == kinds[idle] and zone[gpu] != zone[idle]
        }
        source = max(alone, key=lambda gpu: (alone[gpu], gpu), default="")
        if not alone.get(source):
            continue
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


def spread(plan: Plan, fleet: Fleet, zones: Mapping[str, str]) -> Plan:
    """The plan with accelerators of one kind swapped until no swap parts more replicas.

    Guests are no replicas: they are lent what is left.
    Each swap lowers the number of models that have two replicas or more, all in one zone; so it
    ends. The first swap that does is taken, in order of names.
    """
    zone = _zones(fleet, zones)
    kinds = {gpu.id: replace(gpu, id="") for gpu in fleet.gpus}
    held: dict[str, set[str]] = {gpu: set() for gpu in zone}
    for part in plan.partitions:
        held[part.gpu].update(own_models_of([part]))
    replicas = _Replicas(held, zone)
    place = {gpu: gpu for gpu in held}  # where what was planned for an accelerator goes
    names = sorted(held)
    swapped = True
    while swapped:
        swapped = False
        for one in names:
            if not any(map(replicas.gathered, held[one])):
                continue
            for other in names:
                if kinds[one] != kinds[other] or not replicas.swap(one, other):
                    continue
                place[one], place[other] = place[other], place[one]
                swapped = True
                break
    moved = tuple(replace(p, gpu=place[p.gpu]) for p in plan.partitions)
    return replace(plan, partitions=moved)


class _Replicas:
    """In which zone each accelerator's models are, and of which models all replicas are in one."""

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

    def swap(self, one: str, other: str) -> bool:
        """Let two accelerators change zones, if that parts more replicas than it gathers."""
        here, there = self._zone[one], self._zone[other]
        if here == there:
            return False
        moving = self._held[one] ^ self._held[other]
        before = sum(map(self.gathered, moving))
        self._change(one, other)
        if sum(map(self.gathered, moving)) < before:
            return True
        self._change(one, other)
        return False

    def _change(self, one: str, other: str) -> None:
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
