"""How many accelerators: always those there are, or as many as the plan needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from interlace.core.hardware import Fleet
from interlace.core.plan import Plan


def fixed(plan: Plan, fleet: Fleet) -> Mapping[str, int]:
    """The accelerators there are."""
    return Counter(gpu.kind for gpu in fleet.gpus)


def grow_and_shrink(plan: Plan, fleet: Fleet) -> Mapping[str, int]:
    """One more while something is unserved, fewer when one stands empty (gpulet, Algorithm 2)."""
    used = {partition.gpu for partition in plan.partitions}
    wanted = Counter(gpu.kind for gpu in fleet.gpus if gpu.id in used)
    if any(rate > 0 for rate in plan.unserved_rps.values()) and fleet.gpus:
        wanted[fleet.gpus[-1].kind] += 1
    return wanted
