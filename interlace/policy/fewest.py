"""How few accelerators do: a packer tried on fleets that grow."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.hardware import Fleet, Gpu
from interlace.core.kinds import fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.policy.base import Planner

_NOTHING_RPS = 1e-3


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

    gpulet's Algorithm 2 for any packer: from ``start`` accelerators up to ``limit``. What no fleet
    serves is not waited for: models that a large fleet leaves out are left out of the count too.
    If the limit does not suffice, the plan on all of it.
    """
    before = current or Plan()
    most = packer(demand, fleet(gpu, limit), profiles, before)
    hopeless = short(most)
    used = {partition.gpu for partition in most.partitions}
    for count in range(max(1, start), len(used)):
        plan = packer(demand, fleet(gpu, count), profiles, before)
        if short(plan) <= hopeless:
            return plan, fleet(gpu, count)
    kept = tuple(one for one in fleet(gpu, limit).gpus if one.id in used)
    return most, Fleet(kept)


def short(plan: Plan) -> set[str]:
    """Models that are not served all that they ask for."""
    return {model for model, rps in plan.unserved_rps.items() if not rps <= _NOTHING_RPS}
