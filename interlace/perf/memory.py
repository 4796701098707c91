"""Bytes that models need on one accelerator: weights once, activations for each instance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Partition
from interlace.core.profile import Profile, Profiles


def comes_and_goes(profile: Profile, gpu: Gpu) -> bool:
    """True if the model's weights are swapped: loaded on demand, and evicted.

    Without a profile by layer, load times are unknown, and the weights stay.
    """
    return gpu.weights_bytes > 0 and bool(profile.layers)


def needed_bytes(instances: Iterable[str], profiles: Profiles, gpu: Gpu) -> int:
    """Memory of these model instances (a model once per partition it is in), weights shared.

    Swapped weights have a budget of their own.
    """
    seen: set[str] = set()
    total = 0
    for model in instances:
        profile = profiles[model]
        total += profile.activation_bytes
        if model not in seen and not comes_and_goes(profile, gpu):
            seen.add(model)
            total += profile.weights_bytes
    return total


def room_bytes(gpu: Gpu) -> int:
    """Memory for all but swapped weights."""
    return gpu.memory_bytes - gpu.weights_bytes


def holds(gpu: Gpu, held: Iterable[tuple[int, Sequence[str]]], profiles: Profiles) -> bool:
    """True if an accelerator has the memory for these partitions, given as (share, models).

    Behind walls, as MIG's are, every partition has weights of its own and memory of its own.
    """
    walls = dict(gpu.walls)
    shared: list[str] = []
    for share_pct, models in held:
        if share_pct not in walls:
            shared.extend(models)
        elif needed_bytes(models, profiles, gpu) > walls[share_pct]:
            return False
    return needed_bytes(shared, profiles, gpu) <= room_bytes(gpu)


def holds_partitions(gpu: Gpu, partitions: Iterable[Partition], profiles: Profiles) -> bool:
    """True if an accelerator has the memory for these partitions."""
    held = [(one.share_pct, [slot.model for slot in one.slots]) for one in partitions]
    return holds(gpu, held, profiles)


def most_asked_for(
    demand: Sequence[Demand], gpus: Sequence[Gpu], profiles: Profiles
) -> frozenset[str]:
    """Models that find memory together, once each, the most rows/s for each byte first.

    Each goes where most is left: accelerators are not searched for a better filling.
    """
    left = [(-room_bytes(gpu), index) for index, gpu in enumerate(gpus)]
    heapify(left)
    held = []
    sizes = {one.model: needed_bytes([one.model], profiles, gpus[0]) for one in demand}

    def order(one: Demand) -> tuple[float, int, str]:
        size = sizes[one.model]
        return -one.rows_per_s / max(size, 1), size, one.model

    for one in sorted(demand, key=order):
        free_bytes, index = -left[0][0], left[0][1]
        needed = needed_bytes([one.model], profiles, gpus[index])
        if needed <= free_bytes:
            heapreplace(left, (needed - free_bytes, index))
            held.append(one.model)
    return frozenset(held)
