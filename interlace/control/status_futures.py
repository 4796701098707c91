"""What the engine tells of deployments, as something that can be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from interlace.core.messages import ReportStatus

#: Called with a deployment key and a reason when a model that was ready is set aside.
OnQuarantine = Callable[[str, str], None]
#: Called with a deployment key when a model that was set aside serves again.
OnRecovery = Callable[[str], None]


class StatusFutures:
    """Futures for "ready or failed" and "gone", by deployment key."""

    def __init__(self, on_aside: OnQuarantine, on_back: OnRecovery) -> None:
        self._on_aside = on_aside
        self._on_back = on_back
        self._settled: dict[str, asyncio.Future[str | None]] = {}
        self._gone: dict[str, asyncio.Future[None]] = {}

    def expect(self, key: str) -> asyncio.Future[str | None]:
        """Resolves to ``None`` when the deployment is ready, to the reason if it failed."""
        future = asyncio.get_running_loop().create_future()
        self._settled[key] = future
        return future

    def expect_gone(self, key: str) -> asyncio.Future[None]:
        """Resolves when nothing of the deployment is left."""
        future = asyncio.get_running_loop().create_future()
        self._gone[key] = future
        return future

    def tell(self, tell: ReportStatus) -> None:
        """Take in what the engine says."""
        if tell.status == "gone":
            gone = self._gone.pop(tell.model, None)
            if gone is not None and not gone.done():
                gone.set_result(None)
            return
        settled = self._settled.pop(tell.model, None)
        if settled is not None and not settled.done():
            settled.set_result(tell.detail if tell.status == "failed" else None)
        elif tell.status == "failed":
            self._on_aside(tell.model, tell.detail)
        else:
            self._on_back(tell.model)
