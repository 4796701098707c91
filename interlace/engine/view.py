"""One accelerator at one instant, as policies see it (``policy.view``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from interlace.core.hardware import Gpu
from interlace.core.plan import Plan, Slot
from interlace.engine.input_pool import InputPool
from interlace.engine.input_staging import InputStaging
from interlace.engine.live_partition import LivePartition
from interlace.engine.rate_tracker import RateTracker
from interlace.engine.request_queue import RequestQueue
from interlace.engine.state import DeployedModel, EngineState
from interlace.policy.decision import Tally
from interlace.policy.view import History, PartitionView, View

#: The queue of a model whose weights are not there.
_EMPTY: Final = RequestQueue(0)
_NOTHING: Final[Mapping[str, LivePartition]] = {}


class GpuHistory(History):
    """What has run on one accelerator."""

    __slots__ = ("_gpu", "_state")

    def __init__(self, state: EngineState, gpu: str) -> None:
        self._state = state
        self._gpu = gpu

    def tally(self, model: str) -> Tally:
        return self._state.tally(self._gpu, model)

    def runs_since(self, model: str, since_ms: float) -> int:
        return self._state.runs_since(self._gpu, model, since_ms)


class GpuView(View):
    """A live window on the engine's state; policies read it and keep nothing of it."""

    __slots__ = ("_all", "_rates", "_staging", "_state", "gpu", "history")

    def __init__(
        self,
        state: EngineState,
        rates: RateTracker,
        staging: InputStaging,
        gpu: Gpu,
        everything: bool = False,
    ) -> None:
        """With ``everything``, queues of models whose weights are not loaded are included."""
        self._state = state
        self._staging = staging
        self._rates = rates
        self._all = everything
        self.gpu = gpu
        self.history = GpuHistory(state, gpu.id)

    @property
    def plan(self) -> Plan:
        return self._state.target

    @property
    def partitions(self) -> Sequence[LivePartition]:
        return self._state.partitions_on.get(self.gpu.id, ())

    @property
    def running(self) -> Collection[LivePartition]:
        return self._state.running_on.get(self.gpu.id, _NOTHING).values()

    def model(self, model: str) -> DeployedModel:
        return self._state.models[model]

    def serves(self, model: str) -> bool:
        deployed = self._state.models.get(model)
        return deployed is not None and bool(deployed.hosts or deployed.lenders)

    def rows_per_s(self, model: str) -> float:
        return self._rates.rows_per_s(model) or self._state.models[model].demand.rows_per_s

    def queue(self, model: str) -> RequestQueue | InputPool:
        deployed = self._state.models[model]
        if deployed.weights and not self._all:
            weights = deployed.weights.get(self.gpu.id)
            if weights is not None and not weights.open:
                return _EMPTY
        return self._staging.source(deployed, self.gpu.id) if deployed.pools else deployed.queue

    def queued(self, partition: PartitionView) -> Sequence[Slot]:
        turns, waiting = self._state.turns_of[partition.id]
        live = self._state.partitions[partition.id]
        found: list[tuple[int, Slot]] = []
        for model in turns if len(turns) < len(waiting) else waiting:
            own, deployed = turns.get(model), waiting.get(model)
            if own is None or deployed is None or not (deployed.queue.rows or deployed.pools):
                continue
            if not (deployed.pools or deployed.weights) or self.queue(model).rows:
                found += own
        if live.waiting:
            found = [(place, slot) for place, slot in found if live.may_begin(slot.model)]
        if len(found) > 1:
            found.sort()  # as planned
        return [slot for _, slot in found]

    def coming(self, partition: PartitionView) -> Sequence[tuple[Slot, RequestQueue]]:
        if not self._state.coming:
            return ()
        turns = self._state.turns_of[partition.id].by_model
        return [
            (turns[model][-1][1], queue)
            for model, queue in self._state.coming.items()
            if model in turns
        ]

    def waiting_lanes(self) -> Iterable[tuple[str, Sequence[tuple[PartitionView, Slot]]]]:
        lanes, waiting = self._state.lanes_on[self.gpu.id], self._state.waiting_on[self.gpu.id]
        found = [
            (model, lanes.get(model, ()))
            for model, deployed in waiting.items()
            if (deployed.queue.rows or deployed.pools)
            and (not (deployed.pools or deployed.weights) or self.queue(model).rows)
        ]
        if not any(live.waiting for live in self.partitions):
            return found
        partitions = self._state.partitions
        return [
            (model, [lane for lane in hosts if partitions[lane[0].id].may_begin(model)])
            for model, hosts in found
        ]

    def slot(self, partition: PartitionView, model: str) -> Slot:
        return self._state.turns_of[partition.id].by_model[model][-1][1]

    def waiting_rows(self, model: str) -> int:
        return self._staging.waiting_rows(self._state.models[model], self.gpu.id)
