"""What the engine reports of deployments, as something that can be awaited."""

from __future__ import annotations

import asyncio
import logging

from interlace.control.registry import VersionRegistry, VersionState
from interlace.core.deployment_key import DeploymentKey
from interlace.core.messages import ReportSettled, ReportStatus
from interlace.server.model_table import ModelTable

_log = logging.getLogger(__name__)


class StatusFutures:
    """Futures by deployment key, and an event that is set while the whole plan stands.

    Registry and table are told which deployments are quarantined, and which serve again.
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
            await asyncio.wait_for(self._settled.wait(), limit_s)
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
            self._registry.mark(entry.name, entry.version, state, reason)
        for served in self._table.all():
            if served.key == key:
                served.ready = state is VersionState.READY
