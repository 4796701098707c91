"""How many rows the next batch takes."""

from __future__ import annotations

from interlace.core.request import Request
from interlace.policy.base import PartitionView, View


def adaptive_rows(
    model: str, head: Request, partition: PartitionView, view: View, now_ms: float
) -> int:
    """The largest batch that ends by its most urgent request's deadline (gpulet section 2.1).

    Bounded by what is queued and by the batch of highest throughput: beyond it company costs
    time and gains nothing.
    """
    limit = max(view.best_batch(model, partition.share_pct), head.rows)
    rows = view.queue(model).batch_rows(limit)
    budget_ms = head.deadline_ms - now_ms
    while rows > head.rows:
        if view.latency_ms(model, rows, partition.share_pct, head.shape) <= budget_ms:
            break
        rows -= 1
    return rows
