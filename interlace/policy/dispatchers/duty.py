"""Models take turns inside each partition, with the batches that were planned."""

from __future__ import annotations

from interlace.policy.decision import Dispatch, Launch
from interlace.policy.view import PartitionView, View, available_partitions


def duty(view: View, now_ms: float) -> Dispatch:
    """The duty cycle of gpulet and Nexus (gpulet section 2.2), work-conserving.

    Every idle partition starts the model whose turn has been waiting longest among those with
    requests; a turn with nothing queued is skipped rather than waited for. A turn takes what is
    queued up to its planned batch, even if that makes the most urgent request late. Batches cut
    down to the head's deadline (adaptive batching, section 2.1) serve less the later heads are.
    They would never catch up after a burst that a plan has room for.
    """
    launches: list[Launch] = []
    taken: dict[str, int] = {}
    for partition in available_partitions(view, now_ms):
        launch = _turn(partition, view, taken)
        if launch is not None:
            launches.append(launch)
            taken[launch.model] = taken.get(launch.model, 0) + launch.rows
    return Dispatch(tuple(launches))


def _turn(partition: PartitionView, view: View, taken: dict[str, int]) -> Launch | None:
    waiting = [
        slot
        for slot in view.queued(partition)
        if view.queue(slot.model).rows > taken.get(slot.model, 0)
    ]
    if not waiting:
        return None
    slot = min(waiting, key=lambda slot: partition.last_start_ms(slot.model))
    return Launch(partition.id, slot.model, view.queue(slot.model).batch_rows(slot.batch))
