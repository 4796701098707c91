"""What a controller says of its fleet, and what another plan would change in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from interlace.core.hardware import Gpu
from interlace.core.node import Assignment, NodeState
from interlace.core.plan import Plan, PlanMoves, moves
from interlace.fleet.fleet_gpus import plans_by_node
from interlace.fleet.kinds import FleetCost


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node's part: its accelerators, those with a partition, rows/s by model.

    ``comes`` and ``goes``: models that it does not serve now, and that it serves only now.
    """

    accelerators: dict[str, int]
    used: int
    models: dict[str, float]
    comes: list[str]
    goes: list[str]


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """A plan that could be headed for.

    ``loads`` are models that would be loaded into partitions which do not hold them now;
    ``headroom`` is the largest factor on all rates that still fits, if the planner says so;
    ``failure`` says why there is no such plan; ``cost`` is ``None`` without prices.
    """

    nodes: dict[str, PlannedNode]
    moves: PlanMoves
    loads: int
    unserved_rows_per_s: dict[str, float]
    reasons: dict[str, str]
    headroom: float | None
    failure: str
    cost: FleetCost | None = None


def planned_fleet(
    before: Plan, after: Plan, gpus: Mapping[str, Sequence[Gpu]], failure: str = ""
) -> PlannedFleet:
    """The step from one plan for a fleet to another, whose partitions keep their ids where they
    stay; ``gpus`` are the accelerators of each node.
    """
    old, new = plans_by_node(before, gpus), plans_by_node(after, gpus)
    return PlannedFleet(
        {node: _node(old[node], new[node], gpus[node]) for node in gpus},
        moves(before.partitions, after.partitions),
        len(_held(after) - _held(before)),
        dict(after.unserved_rows_per_s),
        dict(after.reasons),
        after.headroom,
        failure,
    )


def _node(before: Plan, after: Plan, gpus: Sequence[Gpu]) -> PlannedNode:
    now, then = _rates(before), _rates(after)
    return PlannedNode(
        dict(Counter(gpu.kind for gpu in gpus)),
        len({part.gpu for part in after.partitions}),
        then,
        sorted(then.keys() - now.keys()),
        sorted(now.keys() - then.keys()),
    )


def _rates(plan: Plan) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in plan.partitions:
        for slot in part.slots:
            found[slot.model] = found.get(slot.model, 0.0) + slot.rows_per_s
    return dict(sorted(found.items()))


def _held(plan: Plan) -> set[tuple[str, str]]:
    return {(part.id, slot.model) for part in plan.partitions for slot in part.slots}


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node; ``accelerators`` are counted by kind, what is ``None`` is not known."""

    zone: str
    accelerators: dict[str, int]
    state: NodeState | None
    assigned: Assignment | None
    problem: str
    drained: bool
    remark: str = ""  #: what is odd and keeps it from nothing


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The whole fleet as one controller sees it; ``term`` is 0 while another one commands.

    Nodes with other ``files`` in their state have not yet at hand what is wanted.
    """

    term: int
    files: str
    nodes: dict[str, NodeStatus]
    unserved_rows_per_s: dict[str, float]
    reasons: dict[str, str]
    failure: str  #: why there is no newer plan
    planning: bool = False  #: another plan than what nodes were told is being made
    cost: FleetCost | None = None  #: without prices it is not known
