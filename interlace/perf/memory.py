"""Bytes that models need on one accelerator: weights once, activations for each instance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from interlace.core.hardware import Gpu
from interlace.core.plan import Partition
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
