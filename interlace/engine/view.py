"""One accelerator at one instant, as policies see it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Elastic, Slot
from interlace.engine.partitions import Live
from interlace.engine.pool import Pool
from interlace.engine.queues import Queue
from interlace.engine.rates import Rates
from interlace.engine.staging import Staging
from interlace.engine.state import State
from interlace.policy.base import PartitionView, Tally


class GpuView:
    """A live window on the engine's state; policies read it and keep nothing of it."""

    __slots__ = ("_rates", "_staging", "_state", "gpu")

    def __init__(self, state: State, rates: Rates, staging: Staging, gpu: Gpu) -> None:
        self._state = state
        self._staging = staging
        self._rates = rates
        self.gpu: Gpu = gpu

    @property
    def partitions(self) -> Sequence[Live]:
        return self._state.here.get(self.gpu.id, ())

    @property
    def tallies(self) -> Mapping[str, Tally]:
        return self._state.tally(self.gpu.id)

    def queue(self, model: str) -> Queue | Pool:
        tenant = self._state.tenants[model]
        return self._staging.source(tenant, self.gpu.id) if tenant.pools else tenant.queue

    def queued(self, partition: PartitionView) -> Sequence[Slot]:
        turns = self._state.turns[partition.id]
        return [
            slot
            for slot, tenant in turns
            if tenant.queue.rows or (tenant.pools and self.queue(slot.model).rows)
        ]

    def waiting_rows(self, model: str) -> int:
        return self._staging.waiting_rows(self._state.tenants[model], self.gpu.id)

    def elastic(self, model: str) -> Elastic | None:
        return self._state.target.elastic.get(model)

    def hosts(self, model: str) -> Sequence[Live]:
        return self._state.tenants[model].hosts

    def lenders(self, model: str) -> Sequence[Live]:
        return self._state.tenants[model].lenders

    def demand(self, model: str) -> Demand:
        return self._state.tenants[model].demand

    def latency_ms(self, model: str, rows: int, share_pct: int, shape: Hashable = None) -> float:
        return self._state.tenants[model].belief.latency_ms(rows, share_pct, shape)

    def caution_ms(self, model: str) -> float:
        return self._state.tenants[model].caution.margin_ms

    @property
    def session_ms(self) -> float | None:
        return self._state.target.session_ms

    def rate_rps(self, model: str) -> float:
        seen_rps = self._rates.rate_rps(model)
        return seen_rps or self._state.tenants[model].demand.rate_rps

    def runs_since(self, model: str, since_ms: float) -> int:
        return self._state.runs_since(self.gpu.id, model, since_ms)

    def best_batch(self, model: str, share_pct: int) -> int:
        return self._state.tenants[model].belief.best_batch(share_pct)
