"""How many rows the next batch takes."""

from __future__ import annotations

from interlace.core.plan import Slot
from interlace.core.request import Request
from interlace.policy.base import PartitionView, View


def adaptive_rows(
    slot: Slot, head: Request, partition: PartitionView, view: View, end_ms: float, now_ms: float
) -> int:
    """The largest batch that ends by ``end_ms``, the deadline of its head (gpulet section 2.1) or
    earlier where others wait.

    Bounded by what is queued and by the slot's batch: beyond it a batch gains little or blocks
    the partition's other models for too long.
    """
    rows = view.queue(slot.model).batch_rows(max(slot.batch, head.rows))
    budget_ms = end_ms - now_ms
    while rows > head.rows:
        if view.latency_ms(slot.model, rows, partition.share_pct, head.shape) <= budget_ms:
            break
        rows -= 1
    return rows
