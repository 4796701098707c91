"""Models take turns inside each partition, with batches as large as their deadlines allow."""

from __future__ import annotations

from interlace.policy.base import Dispatch, Launch, PartitionView, View
from interlace.policy.batching import adaptive_rows


def duty(view: View, now_ms: float) -> Dispatch:
    """The duty cycle of gpulet and Nexus (gpulet section 2.2), work-conserving.

    Every idle partition starts the model whose turn has been waiting longest among those with
    requests; a turn with nothing queued is skipped rather than waited for. Batches are adaptive
    (gpulet section 2.1): the largest that ends by the deadline of its most urgent request.
    """
    launches: list[Launch] = []
    taken: dict[str, int] = {}
    for partition in view.partitions:
        if not partition.accepting or partition.running is not None:
            continue
        launch = _turn(partition, view, now_ms, taken)
        if launch is not None:
            launches.append(launch)
            taken[launch.model] = taken.get(launch.model, 0) + launch.rows
    return Dispatch(tuple(launches))


def _turn(
    partition: PartitionView, view: View, now_ms: float, taken: dict[str, int]
) -> Launch | None:
    waiting = [
        slot for slot in partition.slots if view.queue(slot.model).rows > taken.get(slot.model, 0)
    ]
    if not waiting:
        return None
    slot = min(waiting, key=lambda slot: partition.last_start_ms(slot.model))
    head = view.queue(slot.model).head
    if head is None:
        return None
    rows = adaptive_rows(slot, head, partition, view, head.deadline_ms, now_ms)
    return Launch(partition.id, slot.model, rows)
