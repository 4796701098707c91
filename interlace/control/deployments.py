"""Deployments as the engine has them: brought up, taken down, and awaited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from interlace.control.model_preparer import PreparedModel
from interlace.control.registry import VersionRegistry, VersionState
from interlace.core.deployment_key import DeploymentKey
from interlace.core.errors import Reason, ServeError
from interlace.core.messages import (
    Deployment,
    ModelsDeployed,
    ModelWithdrawn,
    ReportSettled,
    ReportStatus,
)
from interlace.core.model import Model
from interlace.core.plan import Demand, as_rows_per_s
from interlace.device.base import Registers
from interlace.runtime.runtime import Runtime
from interlace.server.model_table import ModelTable, ServedModel

_log = logging.getLogger(__name__)


class StatusFutures:
    """Futures by deployment key, and an event that is set while the whole plan is loaded.

    Registry and table learn which deployments are quarantined, and which serve again.
    """

    def __init__(self, registry: VersionRegistry, table: ModelTable) -> None:
        self._registry = registry
        self._table = table
        self._ready: dict[str, asyncio.Future[str | None]] = {}
        self._gone: dict[str, asyncio.Future[None]] = {}
        self._settled = asyncio.Event()
        self._settled.set()  # nothing is planned yet

    def expect_ready(self, key: str) -> asyncio.Future[str | None]:
        """Resolves to ``None`` when the deployment is ready, to the reason if it failed."""
        future = asyncio.get_running_loop().create_future()
        self._ready[key] = future
        return future

    def expect_gone(self, key: str) -> asyncio.Future[None]:
        """Resolves when nothing of the deployment is left."""
        future = asyncio.get_running_loop().create_future()
        self._gone[key] = future
        return future

    @property
    def is_settled(self) -> bool:
        """Every model is loaded in each of its partitions."""
        return self._settled.is_set()

    async def settled(self, limit_s: float) -> bool:
        """Wait until every model is loaded in each of its partitions; false after ``limit_s``."""
        try:
            async with asyncio.timeout(limit_s):
                await self._settled.wait()
        except TimeoutError:
            return False
        return True

    def report(self, report: ReportStatus | ReportSettled) -> None:
        """Take in what the engine reports."""
        match report:
            case ReportSettled(settled=settled):
                if settled:
                    self._settled.set()
                else:
                    self._settled.clear()
            case ReportStatus(model=key, status="gone"):
                gone = self._gone.pop(key, None)
                if gone is not None and not gone.done():
                    gone.set_result(None)
            case ReportStatus(model=key, status=status, detail=detail):
                ready = self._ready.pop(key, None)
                if ready is not None and not ready.done():
                    ready.set_result(detail if status == "failed" else None)
                elif status == "failed":
                    self._enter(key, VersionState.UNAVAILABLE, detail)
                    _log.warning("quarantined %s: %s", DeploymentKey.parse(key).label, detail)
                else:
                    self._enter(key, VersionState.READY)
                    _log.info("%s serves again", DeploymentKey.parse(key).label)

    def _enter(self, key: str, state: VersionState, reason: str = "") -> None:
        entry = self._registry.by_key(key)
        if entry is not None and entry.state is not VersionState.UNLOADING:
            self._registry.put(replace(entry, state=state, reason=reason))
        for served in self._table.all():
            if served.key == key:
                served.ready = state is VersionState.READY


class Deployments:
    """Deploys models and routes their public names to them."""

    def __init__(
        self, runtime: Runtime, device: Registers, table: ModelTable, statuses: StatusFutures
    ) -> None:
        self._runtime = runtime
        self._device = device
        self._table = table
        self._statuses = statuses
        self.settled = statuses.settled

    async def bring_up(self, one: PreparedModel) -> None:
        """Deploy a model and route to it.

        Raises:
            ServeError: it has no place, or cannot be loaded: why.
        """
        for detail in (await self.bring_up_all([one])).values():
            raise ServeError(Reason.BACKEND, detail)

    async def bring_up_all(self, ready: Sequence[PreparedModel]) -> dict[str, str]:
        """Deploy models, planned together, and route to them; return failures by deployment key."""
        outcomes = {one.model.key: self._statuses.expect_ready(one.model.key) for one in ready}
        self._runtime.deliver(ModelsDeployed(tuple(_deployment(one) for one in ready)))
        failures: dict[str, str] = {}
        for one in ready:
            failure = await outcomes[one.model.key]
            if failure is None:
                self._table.publish(ServedModel(one.model.for_clients, config=one.config))
            else:
                failures[one.model.key] = failure
                await self._withdraw(one.model.key)
        return failures

    def take_down(self, model: Model) -> asyncio.Future[None]:
        """Stop routing to a deployment; resolved once all is answered and its memory is free."""
        self._table.withdraw(model.key)
        return self._withdraw(model.key)

    def _withdraw(self, key: str) -> asyncio.Future[None]:
        gone = self._statuses.expect_gone(key)
        gone.add_done_callback(lambda _: self._device.forget(key))
        self._runtime.deliver(ModelWithdrawn(key))
        return gone


def demand_of(model: Model) -> Demand:
    """What its operator expects and promises."""
    terms = model.terms
    rows_per_s = as_rows_per_s(terms.rate_rps or 0.0)
    return Demand(model.key, rows_per_s, terms.slo_ms, model.signature.max_batch)


def _deployment(one: PreparedModel) -> Deployment:
    terms, demand = one.model.terms, one.asked or demand_of(one.model)
    keep_ms, limit_ms = 1000.0 * terms.keep_s, one.model.limit_ms
    return Deployment(demand, one.profile, terms.queue_limit, terms.resident, keep_ms, limit_ms)
