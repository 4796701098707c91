"""Brings deployments up and down: keeps engine, device and model table consistent."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.control.model_preparer import PreparedModel
from interlace.control.status_futures import StatusFutures
from interlace.core.errors import Reason, ServeError
from interlace.core.messages import Deployment, ModelsDeployed, ModelWithdrawn
from interlace.core.model import Model
from interlace.core.plan import Demand, as_rows_per_s
from interlace.device.base import Registers
from interlace.runtime.runtime import Runtime
from interlace.server.model_table import ModelTable, ServedModel


class Deployments:
    """Deploys models and routes their public names to them."""

    def __init__(
        self, runtime: Runtime, device: Registers, table: ModelTable, statuses: StatusFutures
    ) -> None:
        self._runtime = runtime
        self._device = device
        self._table = table
        self._statuses = statuses

    async def bring_up(self, ready: Sequence[PreparedModel]) -> None:
        """Deploy one model, or several that are planned together, and route to them.

        Raises:
            ServeError: the (first) reason why one has no place or cannot be loaded.
        """
        failures = await self.try_bring_up(ready)
        for detail in failures.values():
            raise ServeError(Reason.BACKEND, detail)

    async def try_bring_up(self, ready: Sequence[PreparedModel]) -> dict[str, str]:
        """As ``bring_up``; failures by deployment key, the rest serves."""
        outcomes = {one.model.key: self._statuses.expect_ready(one.model.key) for one in ready}
        self._runtime.deliver(ModelsDeployed(tuple(_deployment(one) for one in ready)))
        failures: dict[str, str] = {}
        for one in ready:
            failure = await outcomes[one.model.key]
            if failure is None:
                self._table.publish(ServedModel(one.model, config=one.config))
            else:
                failures[one.model.key] = failure
                await self._withdraw(one.model.key)
        return failures

    async def settled(self, limit_s: float) -> bool:
        """Wait until every model is loaded in each partition that the plan gives it.

        A model serves from its first partition on. ``False`` if ``limit_s`` ran out before.
        """
        return await self._statuses.settled(limit_s)

    async def take_down(self, model: Model) -> None:
        """Stop routing to a deployment; return when its last reply is sent and its memory freed."""
        self._table.withdraw(model.key)
        await self._withdraw(model.key)

    async def _withdraw(self, key: str) -> None:
        gone = self._statuses.expect_gone(key)
        self._runtime.deliver(ModelWithdrawn(key))
        await gone
        self._device.forget(key)


def demand_of(model: Model) -> Demand:
    """What its operator expects and promises."""
    terms = model.terms
    rows_per_s = as_rows_per_s(terms.rate_rps or 0.0)
    return Demand(model.key, rows_per_s, terms.slo_ms, model.signature.max_batch)


def _deployment(one: PreparedModel) -> Deployment:
    terms, demand = one.model.terms, demand_of(one.model)
    return Deployment(demand, one.profile, terms.queue_limit, terms.resident, 1000.0 * terms.keep_s)
