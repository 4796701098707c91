"""How few accelerators do: a packer tried on fleets that grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.policy.base import Planner

#: A part of a rate that asks only whether the model can be served at all.
_TRICKLE: Final = 1e-3


def fewest(
    packer: Planner,
    demand: Sequence[Demand],
    gpu: Gpu,
    limit: int,
    profiles: Profiles,
    current: Plan | None = None,
    start: int = 1,
) -> tuple[Plan, Fleet]:
    """The plan on the smallest fleet of accelerators like ``gpu`` that leaves nothing unserved.

    ``first_of`` for ``limit`` accelerators of one kind, from ``start`` accelerators up.
    """
    return first_of(packer, demand, uniform_fleet(gpu, limit), profiles, current or Plan(), start)


def first_of(
    packer: Planner,
    demand: Sequence[Demand],
    largest: Fleet,
    profiles: Profiles,
    current: Plan,
    start: int = 1,
) -> tuple[Plan, Fleet]:
    """The plan on as few of the first accelerators of ``largest`` as leave nothing unserved.

    gpulet's Algorithm 2 for any packer, from ``start`` accelerators up, by bisection: a demand that
    some accelerators serve is taken to be served by more. A packer may leave some of them empty, so
    all are tried first; one that is ``frugal`` cannot do with fewer. The search does not wait for
    models whose rate one accelerator alone serves not even to a thousandth. If all do not suffice,
    the plan is on all.
    """
    most = packer(demand, largest, profiles, current)
    missing = most.underserved
    if missing:
        alone = Fleet(largest.gpus[:1])
        hopeless = {
            one.model
            for one in demand
            if one.model in missing and _hopeless(packer, one, alone, profiles)
        }
        if missing - hopeless:
            return most, largest
    used = {partition.gpu for partition in most.partitions}
    best = most, Fleet(tuple(one for one in largest.gpus if one.id in used))
    low, high = min(max(1, start), len(used)), len(used)
    if getattr(packer, "frugal", False):
        return best
    while low < high:
        count = (low + high) // 2
        few = Fleet(largest.gpus[:count])
        plan = packer(demand, few, profiles, current)
        if plan.underserved <= missing:
            best, high = (plan, few), count
        else:
            low = count + 1
    return best


def _hopeless(packer: Planner, one: Demand, alone: Fleet, profiles: Profiles) -> bool:
    trickle = replace(one, rows_per_s=one.rows_per_s * _TRICKLE)
    return bool(packer([trickle], alone, profiles, Plan()).unserved_rows_per_s)
