"""One accelerator at one instant, as policies see it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, ElasticBatching, Slot
from interlace.engine.arrival_rates import ArrivalRates
from interlace.engine.input_pool import InputPool
from interlace.engine.input_staging import InputStaging
from interlace.engine.live_partition import LivePartition
from interlace.engine.request_queue import RequestQueue
from interlace.engine.state import EngineState
from interlace.policy.base import PartitionView, Tally


class GpuView:
    """A live window on the engine's state; policies read it and keep nothing of it."""

    __slots__ = ("_rates", "_staging", "_state", "gpu")

    def __init__(
        self, state: EngineState, rates: ArrivalRates, staging: InputStaging, gpu: Gpu
    ) -> None:
        self._state = state
        self._staging = staging
        self._rates = rates
        self.gpu: Gpu = gpu

    @property
    def partitions(self) -> Sequence[LivePartition]:
        return self._state.here.get(self.gpu.id, ())

    @property
    def tallies(self) -> Mapping[str, Tally]:
        return self._state.tally(self.gpu.id)

    def queue(self, model: str) -> RequestQueue | InputPool:
        deployed = self._state.models[model]
        return self._staging.source(deployed, self.gpu.id) if deployed.pools else deployed.queue

    def queued(self, partition: PartitionView) -> Sequence[Slot]:
        turns = self._state.turns[partition.id]
        return [
            slot
            for slot, deployed in turns
            if deployed.queue.rows or (deployed.pools and self.queue(slot.model).rows)
        ]

    def waiting_rows(self, model: str) -> int:
        return self._staging.waiting_rows(self._state.models[model], self.gpu.id)

    def elastic(self, model: str) -> ElasticBatching | None:
        return self._state.target.elastic.get(model)

    def hosts(self, model: str) -> Sequence[LivePartition]:
        return self._state.models[model].hosts

    def lenders(self, model: str) -> Sequence[LivePartition]:
        return self._state.models[model].lenders

    def demand(self, model: str) -> Demand:
        return self._state.models[model].demand

    def latency_ms(self, model: str, rows: int, share_pct: int, shape: Hashable = None) -> float:
        return self._state.models[model].estimator.latency_ms(rows, share_pct, shape)

    def admission_margin_ms(self, model: str) -> float:
        return self._state.models[model].admission_margin.margin_ms

    @property
    def session_ms(self) -> float | None:
        return self._state.target.session_ms

    def rows_per_s(self, model: str) -> float:
        seen_rows_per_s = self._rates.rows_per_s(model)
        return seen_rows_per_s or self._state.models[model].demand.rows_per_s

    def runs_since(self, model: str, since_ms: float) -> int:
        return self._state.runs_since(self.gpu.id, model, since_ms)

    def best_batch(self, model: str, share_pct: int) -> int:
        return self._state.models[model].estimator.best_batch(share_pct)
