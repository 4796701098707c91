"""Models taken out of service for a while: they crash their workers, or have no place."""

from __future__ import annotations

from typing import Final

from interlace.core.messages import Command, Failure, Load, PartitionWork, ReportStatus, Run
from interlace.engine import refusals
from interlace.engine.request_scheduler import RequestScheduler
from interlace.engine.state import DeployedModel, EngineState

#: A model that crashes its worker this often within the window is quarantined.
CRASH_LIMIT: Final = 3
CRASH_WINDOW_MS: Final = 600_000.0
#: How long a quarantine lasts the first time, and at most. A model that then served for as long as
#: the longest one starts over.
FIRST_QUARANTINE_MS: Final = 10_000.0
LONGEST_QUARANTINE_MS: Final = 600_000.0


class ModelQuarantine:
    """Counts crashes against models, and puts models into quarantine and out of it."""

    def __init__(self, state: EngineState, scheduler: RequestScheduler | None) -> None:
        """``scheduler`` has the requests that wait; ``None`` where no requests are served."""
        self._state = state
        self._scheduler = scheduler

    def worker_died(self, work: PartitionWork, failure: Failure, now_ms: float) -> list[Command]:
        """Count a worker's death against the model whose batch or load failed with it, if any.

        Only the first piece of work that a dead partition fails is the cause, not what was queued
        behind it, nor work of other partitions in the same process (``failure.innocent``).
        """
        if not failure.fatal:
            return []
        live = self._state.partitions.get(work.partition)
        if live is not None:
            if live.dying:
                return []
            live.dies()
        if failure.innocent:
            return []
        match work:
            case Run(batch=batch):
                return self.count_crash(batch.model, failure.detail, now_ms)
            case Load(model=model):
                return self.count_crash(model, failure.detail, now_ms)
            case _:
                return []

    def count_crash(self, model: str, detail: str, now_ms: float) -> list[Command]:
        """Count one crash against a model; quarantine it if that is one too many."""
        deployed = self._state.models.get(model)
        if deployed is None or deployed.quarantine_reason is not None:
            return []
        recent = [t for t in deployed.crashes_ms if now_ms - t < CRASH_WINDOW_MS]
        deployed.crashes_ms = [*recent, now_ms]
        if len(deployed.crashes_ms) < CRASH_LIMIT:
            return []
        reason = (
            f"it crashed its worker {CRASH_LIMIT} times within "
            f"{CRASH_WINDOW_MS / 60_000.0:g} min, last with: {detail}"
        )
        return self.start(model, deployed, reason, now_ms)

    def start(
        self, model: str, deployed: DeployedModel, reason: str, now_ms: float
    ) -> list[Command]:
        """Stop serving a model; its callers and its owner get the reason.

        Each quarantine lasts twice as long as the one before. A model that has never been ready
        stays in it: its owner decides what to do.
        """
        if deployed.status_reported or deployed.quarantine_ms:
            well = now_ms - deployed.retry_at_ms >= LONGEST_QUARANTINE_MS
            longer_ms = 0.0 if well else min(2.0 * deployed.quarantine_ms, LONGEST_QUARANTINE_MS)
            deployed.quarantine_ms = max(longer_ms, FIRST_QUARANTINE_MS)
            deployed.retry_at_ms = now_ms + deployed.quarantine_ms
            reason += f"; it is tried again after {deployed.quarantine_ms / 1000.0:g} s"
        deployed.quarantine_reason = reason
        deployed.status_reported = True
        self._state.drop_from_target(model)
        error = refusals.quarantined(deployed, now_ms)
        failed = ReportStatus(model, "failed", reason)
        waiting = self._scheduler.abandon(deployed, error) if self._scheduler else []
        return [*waiting, failed]

    def end_due(self, now_ms: float) -> bool:
        """End the quarantines that are over; true if there were any."""
        due = [
            one
            for one in self._state.models.values()
            if one.quarantine_reason is not None and not one.leaving and now_ms >= one.retry_at_ms
        ]
        for deployed in due:
            deployed.quarantine_reason, deployed.status_reported = None, False
            deployed.crashes_ms.clear()
        return bool(due)
