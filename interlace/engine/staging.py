"""Inputs on their way to accelerators before anybody decides what runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.hardware import Fleet, Trait
from interlace.core.messages import Command, Finished, Stage
from interlace.core.request import Request
from interlace.engine.pool import Pool
from interlace.engine.queues import Queue
from interlace.engine.state import State, Tenant

#: A pool has that many times the rows that may run at once (E2bird section 5.1: several).
_TIMES: Final = 4


@dataclass(frozen=True, slots=True)
class Staging:
    """Which of a model's requests are staged, where, and what can be launched on an accelerator.

    A request is in one place: in its model's queue, in one pool, or in a batch. It goes to the pool
    with the fewest rows as soon as there is room, most urgent first, and from then on order of
    arrival rules. What no pool takes (text, another shape than what is there, more rows than slots,
    a second try) stays in the queue and runs from where its bytes lie, when its turn comes.
    """

    state: State
    staged: bool  #: the system stages inputs at all

    def fill(self, tenant: Tenant) -> list[Command]:
        """Stage what waits in the queue, as far as there is room."""
        if not self.staged or not len(tenant.queue):
            return []
        pools = list(self._pools(tenant))
        if not any(pool.room for _, pool in pools):
            return []
        stages: list[Command] = []
        for request in tenant.queue.in_order():
            fitting = [(gpu, pool) for gpu, pool in pools if self._takes(pool, request)]
            if not fitting:
                continue
            gpu, pool = min(fitting, key=lambda pair: pair[1].waiting_rows)
            slot = pool.put(request)
            if slot is None:
                break
            tenant.queue.remove(request.id)
            stages.append(Stage(gpu, request, slot, pool.slots))
        return stages

    def fill_all(self) -> list[Command]:
        """After partitions changed: take back what is staged where its model is gone; fill."""
        stages: list[Command] = []
        if not self.staged:
            return stages
        for tenant in self.state.tenants.values():
            here = {host.gpu for host in tenant.hosts}
            for gpu, pool in tenant.pools.items():
                if gpu not in here:
                    for request in pool.clear():
                        tenant.queue.push(request)
            stages += self.fill(tenant)
        return stages

    def copied(self, finished: Finished, stage: Stage) -> Tenant | None:
        """A copy ended. Returns the model if its request can be launched, or has to be requeued.

        A copy that failed counts as the request's first try: it runs from where its bytes lie.
        """
        tenant = self.state.tenants.get(stage.request.model)
        pool = tenant.pools.get(stage.gpu) if tenant else None
        if tenant is None or pool is None or pool.copied(stage.request, stage.slot) is None:
            return None
        if finished.failure is not None:
            pool.remove(stage.request.id)
            self.state.retried.add(stage.request.id)
            tenant.queue.push(stage.request)
        return tenant

    def ended(self, tenant: Tenant, gpu: str, requests: Sequence[Request]) -> list[Command]:
        """A batch ended: its slots are free for what waits."""
        pool = tenant.pools.get(gpu)
        if pool is None:
            return []
        for request in requests:
            pool.ended(request)
        return self.fill(tenant)

    def source(self, tenant: Tenant, gpu: str) -> Pool | Queue:
        """Where the next batch on an accelerator comes from: whoever has waited longest says."""
        pool = tenant.pools.get(gpu)
        if pool is None:
            return tenant.queue
        head = tenant.queue.head
        if head is None or self._takes(pool, head):
            return pool
        first = pool.first
        return tenant.queue if first is None or head.id < first.id else pool

    def waiting_rows(self, tenant: Tenant, gpu: str) -> int:
        """Rows that wait for an accelerator: staged there, or not staged yet."""
        pool = tenant.pools.get(gpu)
        return tenant.queue.rows + (pool.waiting_rows if pool is not None else 0)

    def _takes(self, pool: Pool, request: Request) -> bool:
        return request.id not in self.state.retried and pool.fits(request)

    def _pools(self, tenant: Tenant) -> Iterator[tuple[str, Pool]]:
        fleet: Fleet = self.state.fleet
        for gpu in dict.fromkeys(host.gpu for host in tenant.hosts):
            pool = tenant.pools.get(gpu)
            if pool is None and Trait.INPUT_POOL in fleet.gpu(gpu).traits:
                most = max(1, tenant.demand.max_batch)
                pool = tenant.pools[gpu] = Pool(_TIMES * most, most)
            if pool is not None:
                yield gpu, pool
