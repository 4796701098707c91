"""What a controller says of its fleet."""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.node import Assignment, NodeState
from interlace.fleet.prices import FleetCost


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
