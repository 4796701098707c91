"""Accelerators of nodes under names of the whole fleet."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
    """A node's part of a plan for the fleet, in the node's own names.

    A model is a guest only where it has a turn, too: what another node serves has no queue here.
    """
    here = [part for part in plan.partitions if node_of(part.gpu) == node]
    served = models_of(here)
    own = tuple(_own(part, served) for part in here)
    return Plan(
        own, session_ms=plan.session_ms, headroom=plan.headroom, overlapping=plan.overlapping
    )


def models_of(partitions: Iterable[Partition]) -> set[str]:
    """The models that have a turn in one of these."""
    return {slot.model for part in partitions for slot in part.slots if not slot.guest}


def _own(part: Partition, served: Collection[str]) -> Partition:
    slots = tuple(slot for slot in part.slots if slot.model in served)
    return replace(part, gpu=part.gpu.partition(_SEPARATOR)[2], slots=slots)
