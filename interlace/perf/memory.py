"""Bytes that models need on one accelerator: weights once, activations for each instance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from interlace.core.hardware import Gpu
from interlace.core.profile import Profiles


def needed_bytes(instances: Iterable[str], profiles: Profiles) -> int:
    """Memory of these model instances (a model once per partition it is in), weights shared."""
    seen: set[str] = set()
    total = 0
    for model in instances:
        profile = profiles[model]
        total += profile.activation_bytes
        if model not in seen:
            seen.add(model)
            total += profile.weights_bytes
    return total


def holds(gpu: Gpu, held: Iterable[tuple[int, Sequence[str]]], profiles: Profiles) -> bool:
    """True if an accelerator has the memory for these partitions, given as (share, models).

    Behind walls, as MIG's are, every partition has weights of its own and memory of its own.
    """
    walls = dict(gpu.walls)
    shared: list[str] = []
    for share_pct, models in held:
        if share_pct not in walls:
            shared.extend(models)
        elif needed_bytes(models, profiles) > walls[share_pct]:
            return False
    return needed_bytes(shared, profiles) <= gpu.memory_bytes
