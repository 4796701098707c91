"""Whoever has the least slack runs next, in batches as large as the deadlines allow."""

from __future__ import annotations

from interlace.core.request import Request
from interlace.policy.base import Dispatch, Launch, PartitionView, View
from interlace.policy.batching import adaptive_rows


def deadline(view: View, now_ms: float) -> Dispatch:
    """Least slack first over the models of each idle partition.

    Slack is what is left of the head's deadline after its own execution. Nothing waits for
    company while the partition is idle: requests that queue up behind a running batch form the
    next one.
    """
    launches: list[Launch] = []
    taken: dict[str, int] = {}
    for partition in view.partitions:
        if not partition.accepting or partition.running is not None:
            continue
        launch = _most_urgent(partition, view, now_ms, taken)
        if launch is not None:
            launches.append(launch)
            taken[launch.model] = taken.get(launch.model, 0) + launch.rows
    return Dispatch(tuple(launches))


def _most_urgent(
    partition: PartitionView, view: View, now_ms: float, taken: dict[str, int]
) -> Launch | None:
    best: tuple[float, str, Request] | None = None
    for slot in partition.slots:
        queue = view.queue(slot.model)
        head = queue.head
        if head is None or queue.rows <= taken.get(slot.model, 0):
            continue
        run_ms = view.latency_ms(slot.model, head.rows, partition.share_pct, head.shape)
        candidate = (head.deadline_ms - run_ms, slot.model, head)
        if best is None or candidate[:2] < best[:2]:
            best = candidate
    if best is None:
        return None
    _, model, head = best
    return Launch(partition.id, model, adaptive_rows(model, head, partition, view, now_ms))
