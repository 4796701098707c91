"""Workers that do not start or die, logged: which one, what it was doing, and when it is back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from interlace.core.deployment_key import DeploymentKey
from interlace.core.messages import (
    Command,
    CreatePartition,
    Event,
    GpuLeft,
    Load,
    PartitionLost,
    ReleasePartition,
    Run,
    Unload,
    Work,
    WorkFinished,
)

_log = logging.getLogger(__name__)

_WORKERS: Final = 1024


@dataclass(slots=True)
class _Worker:
    """One partition's models, what it was doing when it died, and models not loaded again yet."""

    loaded: set[str] = field(default_factory=set)
    doing: str = ""
    missing: set[str] = field(default_factory=set)
    lost_ms: float = 0.0


class WorkerDeathObserver:
    """An observer of the runtime: logs when a worker dies, and when all its models serve again."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._told = ""  #: why the last partition could not be begun

    def __call__(self, now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if type(event) is WorkFinished:
            if event.failure is not None:
                self._failed(event)
            elif type(event.work) is not Run:
                self._ended(event.work, now_ms)
        elif type(event) is PartitionLost:
            self._lost(event, now_ms)
        elif type(event) is GpuLeft:
            _log.warning("%s is gone: planned without it until it is back", event.gpu)

    def _of(self, partition: str) -> _Worker:
        worker = self._workers.setdefault(partition, _Worker())
        while len(self._workers) > _WORKERS:  # those that died and were not made again
            del self._workers[next(iter(self._workers))]
        return worker

    def _failed(self, event: WorkFinished) -> None:
        failure, work = event.failure, event.work
        if failure is not None and isinstance(work, CreatePartition):
            if failure.detail != self._told:  # it is tried again and again
                why = failure.detail
                _log.error("partition %s of %s cannot be begun: %s", work.partition, work.gpu, why)
            self._told = failure.detail
        if failure is None or not failure.fatal or not isinstance(work, Run | Load):
            return
        worker = self._of(work.partition)
        worker.doing = worker.doing or _doing(work)

    def _lost(self, lost: PartitionLost, now_ms: float) -> None:
        worker = self._of(lost.partition)
        doing = worker.doing or "idle"
        _log.warning("worker %s of %s died (%s): %s", lost.partition, lost.gpu, doing, lost.detail)
        worker.missing |= worker.loaded
        worker.loaded.clear()
        worker.doing, worker.lost_ms = "", now_ms

    def _ended(self, work: Work, now_ms: float) -> None:
        match work:
            case ReleasePartition(partition=partition):
                self._workers.pop(partition, None)
            case Load(partition=partition, model=model):
                worker = self._of(partition)
                worker.loaded.add(model)
                self._back(partition, worker, model, now_ms)
            case Unload(partition=partition, model=model) if partition in self._workers:
                self._workers[partition].loaded.discard(model)
            case _:
                pass

    def _back(self, partition: str, worker: _Worker, model: str, now_ms: float) -> None:
        if model not in worker.missing:
            return
        worker.missing.discard(model)
        if not worker.missing:
            took_s = (now_ms - worker.lost_ms) / 1000.0
            _log.info("worker %s serves again %.2f s after it died", partition, took_s)


def _doing(work: Run | Load) -> str:
    if isinstance(work, Load):
        return f"loading {DeploymentKey.parse(work.model).label}"
    batch = work.batch
    again = ", second try" if batch.attempt > 1 else ""
    label = DeploymentKey.parse(batch.model).label
    return f"running batch {batch.id} of {label}, {batch.rows} rows{again}"
