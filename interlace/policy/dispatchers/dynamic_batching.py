"""A worker that waits for its batch to fill: TensorFlow Serving's batching (E2bird 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

from interlace.policy.decision import Dispatch, Launch
from interlace.policy.view import PartitionView, View, available_partitions, start_ms


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """A batch begins once it is full, or once its first request has waited long enough.

    ``wait_part`` is the longest wait as a part of the model's SLO: E2bird's OPT_Wait is 30 ms of
    200 ms for ResNet-152, NO_Wait is 0. ``wait_ms``, if given, is the wait itself. With ``padded``
    every execution is of the largest batch, whatever is in it (Static). Models of one worker take
    turns: the one whose turn was longest ago first.
    """

    wait_part: float = 0.15
    wait_ms: float | None = None
    padded: bool = False

    def __call__(self, view: View, now_ms: float) -> Dispatch:
        launches: list[Launch] = []
        wake_ms = float("inf")
        taken: dict[str, int] = {}
        for partition in available_partitions(view, now_ms):
            at_ms = start_ms(partition, now_ms)
            ready: list[tuple[float, str]] = []
            for slot in partition.slots:
                begins_ms = self._begins_ms(slot.model, view, taken)
                if begins_ms <= at_ms:
                    ready.append((partition.last_start_ms(slot.model), slot.model))
                else:
                    wake_ms = min(wake_ms, begins_ms)
            if ready:
                launch = self._launch(min(ready)[1], partition, view)
                launches.append(launch)
                taken[launch.model] = taken.get(launch.model, 0) + launch.rows
        return Dispatch(tuple(launches), wake_ms if wake_ms < float("inf") else None)

    def _begins_ms(self, model: str, view: View, taken: dict[str, int]) -> float:
        """When the next batch may begin; now or earlier if it may already."""
        queue = view.queue(model)
        head, rows = queue.head, queue.rows - taken.get(model, 0)
        if head is None or rows <= 0:
            return float("inf")
        demand = view.model(model).demand
        if rows >= demand.max_batch:
            return float("-inf")
        longest_ms = self.wait_part * demand.slo_ms if self.wait_ms is None else self.wait_ms
        return head.arrived_ms + longest_ms

    def _launch(self, model: str, partition: PartitionView, view: View) -> Launch:
        most = view.model(model).demand.max_batch
        return Launch(partition.id, model, most, most if self.padded else 0)
