"""This server as one node of several: its state for routers, its plan from a controller."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from interlace.control.lifecycle import ModelLifecycle
from interlace.control.plan_check import check_plan
from interlace.control.registry import VersionRegistry
from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import Reason, ServeError
from interlace.core.hardware import Fleet
from interlace.core.messages import PlanChanged
from interlace.core.plan import Partition
from interlace.core.tables import did_you_mean
from interlace.core.version import __version__
from interlace.engine.engine import Engine
from interlace.engine.outlook import ModelOutlook
from interlace.runtime.runtime import Runtime
from interlace.server.node_control import (
    SCHEMA,
    DrainOrder,
    NodeModel,
    NodeState,
    PlanOrder,
    PlanState,
)

_LOG: Final = logging.getLogger(__name__)
#: Makes the engine's planner follow these partitions, whose models have public names.
Follow = Callable[[Sequence[Partition]], None]


class Node:
    """The ``NodeControl`` of transports. Without ``follow`` it plans for itself and takes no plan.

    Orders are fenced by their generation: one that is older than what was taken is refused, whoever
    sends it, so that of two controllers the newer commands. Plans are carried out one after the
    other, and of those that wait only the newest.
    """

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        fleet: Fleet,
        lifecycle: ModelLifecycle,
        registry: VersionRegistry,
        in_flight: Callable[[], int],
        follow: Follow | None = None,
    ) -> None:
        self._engine, self._runtime, self._fleet = engine, runtime, fleet
        self._lifecycle, self._registry = lifecycle, registry
        self._in_flight, self._follow = in_flight, follow
        self._id = secrets.token_hex(8)
        self._generation = 0
        self._plan: PlanOrder | None = None  #: the newest that was taken
        self._failures: dict[str, str] = {}
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def state(self) -> NodeState:
        now_ms = self._runtime.clock.now_ms()
        outlook = self._engine.outlook(now_ms)
        settled = outlook.settled and not self._tasks
        generation, remote = self._generation, self._follow is not None
        plan = PlanState(remote, generation, settled, outlook.headroom, dict(self._failures))
        named = sorted((DeploymentKey.parse(key), one) for key, one in outlook.models.items())
        models = tuple(_model(key, one) for key, one in named)
        return NodeState(
            SCHEMA, self._id, __version__, now_ms, self._lifecycle.ready(), self._in_flight(),
            self._fleet.gpus[0].kind, tuple(gpu.id for gpu in self._fleet.gpus), plan,
            models,
        )  # fmt: skip

    async def take_plan(self, order: PlanOrder) -> dict[str, object]:
        if self._follow is None:
            raise ServeError(
                Reason.UNSUPPORTED,
                "this node plans for itself: start it with --plan remote to give it plans",
            )
        if order == self._plan and order.generation == self._generation:
            return {"generation": order.generation}  # sent again
        self._fence(order.generation)
        check_plan(order.partitions, self._fleet)
        await self._check_models(order)
        self._fence(order.generation)  # another may have come while storage was read
        self._generation, self._plan, self._failures = order.generation, order, {}
        self._lifecycle.draining = False
        _LOG.info("plan of generation %d: %d partitions", order.generation, len(order.partitions))
        task = asyncio.ensure_future(self._carry_out(order, self._follow))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return {"generation": order.generation}

    def drain(self, order: DrainOrder) -> dict[str, object]:
        self._fence(order.generation)
        self._generation = order.generation
        self._lifecycle.draining = True
        _LOG.info("drained by order of generation %d", order.generation)
        return {"generation": order.generation}

    def _fence(self, generation: int) -> None:
        """Raises ServeError unless the generation is newer than what was taken."""
        if generation <= self._generation:
            raise ServeError(
                Reason.SUPERSEDED,
                f"an order of generation {generation} comes too late: this node obeys generation "
                f"{self._generation}; a controller that has been replaced must give no orders, one "
                "that has not must begin above that",
            )

    async def _check_models(self, order: PlanOrder) -> None:
        there = await self._lifecycle.names()
        for part in order.partitions:
            for slot in part.slots:
                if slot.model not in there:
                    hint = did_you_mean(slot.model, there)
                    raise ServeError(
                        Reason.UNKNOWN_MODEL,
                        f"the plan cannot be carried out here: partition '{part.id}' has model "
                        f"'{slot.model}'{hint}, which is not in this node's repository; it has "
                        f"{', '.join(there) or 'none'}",
                    )

    async def _carry_out(self, order: PlanOrder, follow: Follow) -> None:
        async with self._changing:
            if order is not self._plan:
                return  # a newer one waits
            wanted = {slot.model for part in order.partitions for slot in part.slots}
            serving = {one.name for one in self._registry.all() if one.model is not None}
            # Those that leave are told so before the plan is asked for: their queues are served.
            gone = [
                asyncio.ensure_future(self._lifecycle.unload(name)) for name in serving - wanted
            ]
            await asyncio.sleep(0)
            follow(order.partitions)
            self._runtime.deliver(PlanChanged())
            new = sorted(wanted - serving)
            ends = await asyncio.gather(*map(self._lifecycle.load, new), return_exceptions=True)
            failed = {n: str(end) for n, end in zip(new, ends, strict=True) if end is not None}
            for name, reason in failed.items():
                _LOG.error("plan of generation %d: %s: %s", order.generation, name, reason)
            self._failures = failed
            await asyncio.gather(*gone)

    def close(self) -> None:
        """Stop what is being carried out."""
        for task in self._tasks:
            task.cancel()


def _model(key: DeploymentKey, one: ModelOutlook) -> NodeModel:
    return NodeModel(
        key.name,
        str(key.version),
        round(one.wait_ms, 3),
        round(one.run_ms, 3),
        round(one.row_ms, 3),
        one.slo_ms,
        one.waiting_rows,
        round(one.rows_per_s, 3),
        round(one.planned_rows_per_s, 3),
        round(one.cold_ms, 3),
    )
