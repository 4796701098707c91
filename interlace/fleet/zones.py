"""Models that stand twice stand in two zones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.fleet.fleet_gpus import models_of, node_of
from interlace.policy.base import Planner


@dataclass(frozen=True, slots=True)
class ZonePlanner:
    """Another planner's plan, with equal accelerators swapped so that zones hold replicas apart.

    ``zones`` are by node; a node without one is a zone by itself. What is planned for an
    accelerator stays together, so neither shares nor rates change.
    """

    planner: Planner
    zones: Mapping[str, str]

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        plan = self.planner(demand, fleet, profiles, current)
        return spread(plan, fleet, self.zones)


def spread(plan: Plan, fleet: Fleet, zones: Mapping[str, str]) -> Plan:
    """The plan with accelerators of one kind swapped until no swap parts more replicas.

    Each swap lowers the number of models that have two replicas or more, all in one zone; so it
    ends. Of swaps that bring as much the first is taken, in order of names.
    """
    zone = {gpu.id: zones.get(node_of(gpu.id)) or f"node {node_of(gpu.id)}" for gpu in fleet.gpus}
    kinds = {gpu.id: replace(gpu, id="") for gpu in fleet.gpus}
    held = {gpu.id: frozenset[str]() for gpu in fleet.gpus}
    for gpu in held:
        held[gpu] = frozenset(models_of(p for p in plan.partitions if p.gpu == gpu))
    place = {gpu: gpu for gpu in held}  # where what was planned for an accelerator goes
    while True:
        gathered = _gathered(held, place, zone)
        swap = next(
            (
                (one, other)
                for one in sorted(held)
                if held[one] & gathered
                for other in sorted(held)
                if zone[place[one]] != zone[place[other]] and kinds[one] == kinds[other]
                and len(_gathered(held, _swapped(place, one, other), zone)) < len(gathered)
            ),
            None,
        )  # fmt: skip
        if swap is None:
            moved = tuple(replace(p, gpu=place.get(p.gpu, p.gpu)) for p in plan.partitions)
            return replace(plan, partitions=moved)
        place = _swapped(place, *swap)


def _gathered(
    held: Mapping[str, frozenset[str]], place: Mapping[str, str], zone: Mapping[str, str]
) -> set[str]:
    """Models that stand on several accelerators, all of them in one zone."""
    where: dict[str, list[str]] = {}
    for gpu, models in held.items():
        for model in models:
            where.setdefault(model, []).append(zone[place[gpu]])
    return {model for model, zones in where.items() if len(zones) > 1 and len(set(zones)) == 1}


def _swapped(place: Mapping[str, str], one: str, other: str) -> dict[str, str]:
    return {**place, one: place[other], other: place[one]}
