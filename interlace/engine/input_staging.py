"""Copies inputs to accelerators ahead of the decision what runs (E2bird section 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.hardware import Fleet, Trait
from interlace.core.messages import Command, CopyInputs, WorkFinished
from interlace.core.request import Request
from interlace.engine.input_pool import InputPool
from interlace.engine.request_queue import RequestQueue
from interlace.engine.state import DeployedModel, EngineState

#: A pool has so many times the rows of the largest batch (E2bird section 5.1: several).
_TIMES: Final = 4


@dataclass(frozen=True, slots=True)
class InputStaging:
    """Decides which requests are staged where, and which come next on an accelerator.

    A request is in exactly one place: its model's queue, one pool, or a batch. The most urgent goes
    to the pool with the fewest rows as soon as there is room, and is then served in order of
    staging. Requests that no pool takes stay in the queue and are read from host memory. These are
    text, a shape other than the pool's, more rows than slots, a retry, and all requests of a model
    whose weights are swapped.
    """

    state: EngineState
    staged: bool  #: the system stages inputs at all

    def fill(self, deployed: DeployedModel) -> list[Command]:
        """Stage queued requests as far as there is room."""
        if not self.staged or not len(deployed.queue) or deployed.weights:
            return []
        pools = list(self._pools(deployed))
        if not any(pool.room for _, pool in pools):
            return []
        stages: list[Command] = []
        for request in deployed.queue.in_order():
            fitting = [(gpu, pool) for gpu, pool in pools if self._takes(pool, request)]
            if not fitting:
                continue
            gpu, pool = min(fitting, key=lambda pair: pair[1].waiting_rows)
            slot = pool.put(request)
            if slot is None:
                break
            deployed.queue.remove(request.id)
            stages.append(CopyInputs(gpu, request, slot, pool.slots))
        return stages

    def fill_all(self) -> list[Command]:
        """Partitions changed: unstage requests on accelerators without a host, then fill pools."""
        stages: list[Command] = []
        if not self.staged:
            return stages
        for deployed in self.state.models.values():
            here = {host.gpu for host in deployed.hosts}
            for gpu, pool in deployed.pools.items():
                if gpu not in here:
                    for request in pool.clear():
                        self.state.queue_up(deployed, request)
            stages += self.fill(deployed)
        return stages

    def copied(self, finished: WorkFinished, stage: CopyInputs) -> DeployedModel | None:
        """A copy ended. Returns the model if its request can be launched, or has to be requeued.

        A copy that failed counts as the request's first try: it runs from where its bytes lie.
        """
        deployed = self.state.models.get(stage.request.model)
        pool = deployed.pools.get(stage.gpu) if deployed else None
        if deployed is None or pool is None or pool.copied(stage.request, stage.slot) is None:
            return None
        if finished.failure is not None:
            pool.remove(stage.request.id)
            self.state.retried.add(stage.request.id)
            self.state.queue_up(deployed, stage.request)
        return deployed

    def ended(
        self, deployed: DeployedModel, gpu: str, requests: Sequence[Request]
    ) -> list[Command]:
        """A batch ended: its slots are free for what waits."""
        pool = deployed.pools.get(gpu)
        if pool is None:
            return []
        for request in requests:
            pool.ended(request)
        return self.fill(deployed)

    def source(self, deployed: DeployedModel, gpu: str) -> InputPool | RequestQueue:
        """Where the next batch on an accelerator comes from: where the oldest request waits."""
        pool = deployed.pools.get(gpu)
        if pool is None:
            return deployed.queue
        head = deployed.queue.head
        if head is None or self._takes(pool, head):
            return pool
        first = pool.first
        return deployed.queue if first is None or head.id < first.id else pool

    def waiting_rows(self, deployed: DeployedModel, gpu: str) -> int:
        """Rows that wait for an accelerator: staged there, or not staged yet."""
        pool = deployed.pools.get(gpu)
        return deployed.queue.rows + (pool.waiting_rows if pool is not None else 0)

    def _takes(self, pool: InputPool, request: Request) -> bool:
        free = request.id not in self.state.retried and request.sequence is None
        return free and pool.fits(request)

    def _pools(self, deployed: DeployedModel) -> Iterator[tuple[str, InputPool]]:
        fleet: Fleet = self.state.fleet
        for gpu in dict.fromkeys(host.gpu for host in deployed.hosts):
            pool = deployed.pools.get(gpu)
            if pool is None and Trait.INPUT_POOL in fleet.gpu(gpu).traits:
                most = max(1, deployed.demand.max_batch)
                pool = deployed.pools[gpu] = InputPool(_TIMES * most, most)
            if pool is not None:
                yield gpu, pool
