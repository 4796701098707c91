"""Bytes that models need on one accelerator: weights once, activations for each instance."""

from __future__ import annotations

from collections.abc import Iterable

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
