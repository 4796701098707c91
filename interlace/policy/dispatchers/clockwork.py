"""One execution at a time in order of the latest start: the scheduler of Clockwork."""

from __future__ import annotations

from interlace.policy.batching import rows_in_time
from interlace.policy.decision import Dispatch, Launch
from interlace.policy.view import PartitionView, View, available_partitions, start_ms


def clockwork(view: View, now_ms: float) -> Dispatch:
    """Clockwork's order of inferences (Gujarati et al., OSDI 2020, section 5.3), work-conserving.

    Each model's next batch is the largest that ends before its head's deadline. It must begin by
    that deadline less its predicted latency; of all models that wait, the one whose latest start
    comes first runs next, and no accelerator idles while anything waits. A request that cannot
    be in time is dropped before it runs. Where an accelerator takes the next batch before the one
    that runs ends, it is chosen then, as Clockwork's controller does; models stay in memory.
    """
    launches: list[Launch] = []
    taken: dict[str, int] = {}
    for partition in available_partitions(view, now_ms):
        launch = _next(partition, view, taken, start_ms(partition, now_ms))
        if launch is not None:
            launches.append(launch)
            taken[launch.model] = taken.get(launch.model, 0) + launch.rows
    return Dispatch(tuple(launches))


def _next(
    partition: PartitionView, view: View, taken: dict[str, int], at_ms: float
) -> Launch | None:
    """Of the batches that could begin then, the one with the earliest latest start."""
    best: tuple[float, Launch] | None = None
    for slot in view.queued(partition):
        model, queue = view.model(slot.model), view.queue(slot.model)
        head, left = queue.head, queue.rows - taken.get(slot.model, 0)
        if head is None or left <= 0:
            continue
        most = min(queue.batch_rows(max(head.rows, model.demand.max_batch)), left)
        rows = rows_in_time(most, model, head, partition.share_pct, head.deadline_ms - at_ms)
        run_ms = model.latency_ms(rows, partition.share_pct, head.shape)
        latest_ms = head.deadline_ms - run_ms
        if best is None or latest_ms < best[0]:
            best = latest_ms, Launch(partition.id, slot.model, rows)
    return best[1] if best else None
