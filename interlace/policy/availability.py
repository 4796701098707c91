"""Which partitions take a batch now, and when it would begin there."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.policy.view import PartitionView, View


def available_partitions(view: View, now_ms: float) -> Sequence[PartitionView]:
    """Partitions of an accelerator that take a batch now: the idle, then those about to be."""
    found = [partition for partition in view.partitions if partition.takes(now_ms)]
    if len(found) < 2:
        return found
    return sorted(found, key=lambda partition: partition.running is not None)


def start_ms(partition: PartitionView, now_ms: float) -> float:
    """When a batch that is given to a partition now would begin."""
    return max(now_ms, partition.free_at_ms)


def kept_room(tight: Sequence[tuple[float, int]], run_ms: float) -> int:
    """The room that a batch of ``run_ms`` leaves to models that cannot wait for its end.

    See ``PartitionView.tight``.
    """
    kept = 0
    for slack_ms, room in tight:
        if slack_ms >= run_ms:
            break
        kept = room
    return kept
