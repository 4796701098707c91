"""How few accelerators do: a packer tried on fleets that grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.kinds import fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.policy.base import Planner

_NOTHING_RPS: Final = 1e-3
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

    gpulet's Algorithm 2 for any packer, from ``start`` accelerators up to ``limit``, by bisection:
    what serves a demand with some accelerators is taken to serve it with more. A packer that
    leaves some of them empty says so itself, hence the limit is tried first. Models of which one
    accelerator alone serves not even a thousandth are not waited for. If the limit does not
    suffice, the plan on all of it.
    """
    before = current or Plan()
    most = packer(demand, fleet(gpu, limit), profiles, before)
    missing = short(most)
    if missing:
        hopeless = {
            one.model
            for one in demand
            if one.model in missing and _hopeless(packer, one, gpu, profiles)
        }
        if missing - hopeless:
            return most, fleet(gpu, limit)
    used = {partition.gpu for partition in most.partitions}
    best = most, Fleet(tuple(one for one in fleet(gpu, limit).gpus if one.id in used))
    low, high = min(max(1, start), len(used)), len(used)
    while low < high:
        count = (low + high) // 2
        plan = packer(demand, fleet(gpu, count), profiles, before)
        if short(plan) <= missing:
            best, high = (plan, fleet(gpu, count)), count
        else:
            low = count + 1
    return best


def short(plan: Plan) -> set[str]:
    """Models that are not served all that they ask for."""
    return {model for model, rps in plan.unserved_rps.items() if not rps <= _NOTHING_RPS}


def _hopeless(packer: Planner, one: Demand, gpu: Gpu, profiles: Profiles) -> bool:
    trickle = replace(one, rate_rps=one.rate_rps * _TRICKLE)
    return bool(packer([trickle], fleet(gpu, 1), profiles, Plan()).unserved_rps)
