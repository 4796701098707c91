"""What it costs in accelerators that models stand in two zones.

The plan of a fleet (``fleet.controller``), four accelerators on a node and nodes in zones by turns:
how many there have to be until every model stands in two, and how many are used if more are idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Annotated

from bench.harness import Report, Table, main
from bench.planning.cost import question
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.fleet.fleet_gpus import fleet_gpu, node_of, own_models_of
from interlace.fleet.parted_pools import PartedPools
from interlace.fleet.zones import ZonePlanner
from interlace.policy.catalog import resolve

_GPU = GPU_KINDS["a100"]
_ON_A_NODE = 4


def zones(
    *,
    models: Annotated[tuple[int, ...], "how many"] = (300, 1000),
    zones: int = 2,
    seed: int = 0,
) -> Report:
    """Accelerators with all nodes in one zone, and with nodes in several."""
    cells: list[list[str | float | int | None]] = []
    for many in models:
        gpus = round(0.64 * many)
        demand, profiles = question(many, gpus, _GPU, seed)
        packed = resolve("interlace").packer(demand, _fleet(gpus), profiles, Plan())
        asked = _Question(demand, profiles, packed)
        one = _used(asked.plan(gpus, 1))
        needed = next(there for there in count(one) if not asked.alone(there, zones))
        cells.append([many, one, needed, needed / one, _used(asked.plan(gpus, zones))])
    heads = ["models", "one zone", f"{zones} zones", "ratio", "used if more are idle"]
    return Report(tables=[Table(heads, cells)], figures=cells)


@dataclass(frozen=True, slots=True)
class _Question:
    """Models, and their plan without nodes and zones."""

    demand: Sequence[Demand]
    profiles: Mapping[str, Profile]
    packed: Plan

    def plan(self, there: int, zones: int) -> Plan:
        """The plan on so many accelerators of nodes in so many zones."""
        zone = {node_of(gpu.id): _zone(gpu.id, zones) for gpu in _fleet(there).gpus}
        parted = ZonePlanner(lambda *asked: self.packed, zone)
        planner = PartedPools(parted, {_GPU.kind: self.profiles})
        return planner(self.demand, _fleet(there), self.profiles, Plan())

    def alone(self, there: int, zones: int) -> int:
        """How many models stand in one zone alone."""
        found: dict[str, set[str]] = {one.model: set() for one in self.demand}
        for part in self.plan(there, zones).partitions:
            for model in own_models_of([part]):
                found[model].add(_zone(part.gpu, zones))
        return sum(len(zones_of) < 2 for zones_of in found.values())


def _fleet(gpus: int) -> Fleet:
    own = [replace(_GPU, id=f"gpu{place}") for place in range(_ON_A_NODE)]
    return Fleet(
        tuple(fleet_gpu(f"{i // _ON_A_NODE:04}", own[i % _ON_A_NODE]) for i in range(gpus))
    )


def _zone(gpu: str, zones: int) -> str:
    return str(int(node_of(gpu)) % zones)


def _used(plan: Plan) -> int:
    return len({part.gpu for part in plan.partitions})


if __name__ == "__main__":
    main(zones)
