"""Accelerators of nodes under names of the whole fleet."""

from __future__ import annotations

from collections.abc import Iterable
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


def node_plan(plan: Plan, node: str) -> Plan:
    """A node's part of a plan for the fleet, in the node's own names."""
    own = tuple(_own(part) for part in plan.partitions if node_of(part.gpu) == node)
    return Plan(
        own, session_ms=plan.session_ms, headroom=plan.headroom, overlapping=plan.overlapping
    )


def models_of(partitions: Iterable[Partition]) -> set[str]:
    """The models that have a turn in one of these."""
    return {slot.model for part in partitions for slot in part.slots}


def _own(part: Partition) -> Partition:
    return replace(part, gpu=part.gpu.partition(_SEPARATOR)[2])
