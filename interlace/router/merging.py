"""What several nodes say of the same models, as if one server said it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_READY: Final = "READY"


def merged_index(indices: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One entry for each version of a model: of a node that has it ready, if there is one."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for index in indices:
        for entry in index:
            key = entry["name"], entry["version"]
            if key not in found or entry["state"] == _READY:
                found[key] = entry
    return [found[key] for key in sorted(found)]


def merged_statistics(statistics: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Triton's statistics of each version of a model, added up over nodes."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in statistics:
        for entry in one:
            key = entry["name"], entry["version"]
            found[key] = _sum(found[key], entry) if key in found else entry
    return [found[key] for key in sorted(found)]


def _sum(one: Any, other: Any, key: str = "") -> Any:
    """Counts and durations add up, of times the later stands; lists go by batch size."""
    if isinstance(one, dict):
        return {name: _sum(one[name], other[name], name) if name in other else one[name]
                for name in one}  # fmt: skip
    if key == "batch_stats":
        sizes = {batch["batch_size"]: batch for batch in one}
        for batch in other:
            size = batch["batch_size"]
            known = sizes.get(size)
            sizes[size] = batch if known is None else {**_sum(known, batch), "batch_size": size}
        return [sizes[size] for size in sorted(sizes)]
    if isinstance(one, list):
        return [*one, *other]
    if key == "last_inference":
        return max(one, other)
    return one + other if isinstance(one, int) else one
