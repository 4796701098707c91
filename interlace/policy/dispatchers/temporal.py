"""Time slices in proportion to SLOs on the whole accelerator."""

from __future__ import annotations

from interlace.core.plan import Slot
from interlace.policy.batching import rows_in_time
from interlace.policy.decision import Dispatch, Launch
from interlace.policy.view import PartitionView, View, start_ms


def temporal(view: View, now_ms: float) -> Dispatch:
    """Temporal sharing of D-STACK section 6: slices in proportion to the models' SLOs.

    A round lasts as long as the longest SLO (the session); the paper leaves that open. In its slice
    a model runs batches that end within it and by their head's deadline, as large as fit: adaptive
    batching, as in Clipper and Nexus. A model for which not even one row fits its slice runs one
    at the slice's beginning. No model uses another's slice.
    """
    launches: list[Launch] = []
    wake_ms: float | None = None
    for partition in view.partitions:
        if not partition.accepting or not partition.slots:
            continue
        takes = partition.takes(now_ms)
        at_ms = start_ms(partition, now_ms) if takes else now_ms
        slot, begin_ms, end_ms = _slice(partition, view, at_ms)
        wake_ms = end_ms if wake_ms is None else min(wake_ms, end_ms)
        if takes:
            rows = _rows(slot, partition, view, begin_ms, end_ms, at_ms)
            if rows:
                launches.append(Launch(partition.id, slot.model, rows))
    return Dispatch(tuple(launches), wake_ms)


def _slice(partition: PartitionView, view: View, now_ms: float) -> tuple[Slot, float, float]:
    """Whose slice it is, and from when to when."""
    slos_ms = [view.model(slot.model).demand.slo_ms for slot in partition.slots]
    round_ms = max(slos_ms)
    scale = round_ms / sum(slos_ms)
    begin_ms = now_ms - now_ms % round_ms
    for slot, slo_ms in zip(partition.slots, slos_ms, strict=True):
        end_ms = begin_ms + slo_ms * scale
        if now_ms < end_ms - 1e-6:
            return slot, begin_ms, end_ms
        begin_ms = end_ms
    return partition.slots[0], begin_ms, begin_ms + slos_ms[0] * scale


def _rows(
    slot: Slot, partition: PartitionView, view: View, begin_ms: float, end_ms: float, now_ms: float
) -> int:
    queue, model = view.queue(slot.model), view.model(slot.model)
    head = queue.head
    if head is None:
        return 0
    limit = queue.batch_rows(max(head.rows, model.demand.max_batch))
    least_ms = model.latency_ms(head.rows, partition.share_pct, head.shape)
    if now_ms + least_ms > end_ms:
        first = partition.last_start_ms(slot.model) < begin_ms
        return head.rows if first and least_ms > end_ms - begin_ms else 0
    budget_ms = min(end_ms, head.deadline_ms) - now_ms
    return rows_in_time(limit, model, head, partition.share_pct, budget_ms)
