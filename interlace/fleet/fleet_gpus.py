"""Accelerators of nodes under names of the whole fleet."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Final

from interlace.core.hardware import Gpu
from interlace.core.plan import Partition, Plan

_SEPARATOR: Final = "/"  # no name of a node has one, ids of accelerators may


def fleet_gpu(node: str, gpu: Gpu) -> Gpu:
    """A node's accelerator, named in the fleet."""
    return replace(gpu, id=f"{node}{_SEPARATOR}{gpu.id}")


def node_of(gpu: str) -> str:
    """The node of an accelerator by its name in the fleet."""
    return gpu.partition(_SEPARATOR)[0]


def plans_by_node(plan: Plan, nodes: Iterable[str]) -> dict[str, Plan]:
    """The part of a plan for the fleet that each of these nodes has, in the node's own names."""
    own: dict[str, list[Partition]] = {node: [] for node in nodes}
    for part in plan.partitions:
        node, _, gpu = part.gpu.partition(_SEPARATOR)
        if node in own:
            own[node].append(replace(part, gpu=gpu))
    return {
        node: Plan(
            tuple(parts),
            session_ms=plan.session_ms,
            headroom=plan.headroom,
            overlapping=plan.overlapping,
        )
        for node, parts in own.items()
    }


def plan_of_nodes(plans: Mapping[str, Plan], models: Container[str]) -> Plan:
    """What nodes have, in names of the fleet; of these models alone."""
    every = list(plans.values())
    parts = [
        replace(
            part,
            gpu=f"{node}{_SEPARATOR}{part.gpu}",
            slots=tuple(slot for slot in part.slots if slot.model in models),
        )
        for node, plan in plans.items()
        for part in plan.partitions
    ]
    return Plan(
        tuple(part for part in parts if part.slots),
        session_ms=max((p.session_ms for p in every if p.session_ms is not None), default=None),
        overlapping=any(plan.overlapping for plan in every),
    )


def models_of(partitions: Iterable[Partition]) -> set[str]:
    """The models that have a turn in one of these."""
    return {slot.model for part in partitions for slot in part.slots}


def own_models_of(partitions: Iterable[Partition]) -> set[str]:
    """The models that have a turn of their own in one of these, not lent."""
    return {slot.model for part in partitions for slot in part.slots if not slot.guest}
