"""Workers that die, hold too much memory, or compute while idle."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from interlace.control.registry import VersionRegistry
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
from interlace.device.cpu.device import CpuDevice
from interlace.engine.snapshot import EngineSnapshot, PartitionSnapshot

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


_PERIOD_S: Final = 1.0
#: Limit of a model without one of its own, in one worker: a multiple of its profile, and a minimum.
_TIMES: Final = 2
_FLOOR_BYTES: Final = 512 << 20
#: A worker is reported that used more of a core while idle, in this many checks in a row.
_BUSY_CORES: Final = 0.5
_BUSY_LOOKS: Final = 5
_TICKS_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class _WorkerUsage:
    """A worker at the last look, and in how many looks in a row it was idle but busy."""

    cpu_s: float
    started_ms: Mapping[str, float] = field(default_factory=dict)
    looks: int = 0
    reported: bool = False


@dataclass(slots=True)
class WorkerMonitor:
    """Replaces workers that hold too much memory; warns of those that compute while idle.

    Memory is what a process has for itself beyond what it was forked with. Its limit is the sum of
    its models' ``memory_limit``, or of twice their profiles, at least 512 MiB each.
    """

    _device: CpuDevice
    _engine: Callable[[], EngineSnapshot]
    _registry: VersionRegistry
    _seen: dict[int, _WorkerUsage] = field(default_factory=dict)

    async def run(self) -> None:
        """Check once a second, until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            self.check()

    def check(self) -> None:
        """Check every worker once."""
        server = self._device.fork_server_pid
        inherited_bytes = (_own_bytes(server) or 0) if server is not None else 0
        workers = dict(self._device.workers())
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in workers.values()}
        engine = self._engine()
        for name, pid in workers.items():
            partition = engine.partitions.get(name)
            held_bytes = _own_bytes(pid)
            if partition is None or held_bytes is None or not partition.models:
                continue
            self._check_memory(partition, held_bytes - inherited_bytes, engine)
            self._check_idle(partition, pid)

    def _check_memory(
        self, partition: PartitionSnapshot, held_bytes: int, engine: EngineSnapshot
    ) -> None:
        limit_bytes = sum(self._limit_bytes(key, engine) for key in partition.models)
        if held_bytes <= limit_bytes:
            return
        names = ", ".join(sorted(partition.models))
        cause = (
            f"replaced: it held {held_bytes >> 20} MiB, its limit is {limit_bytes >> 20} MiB "
            f"(memory_limit, or twice the profile, of {names})"
        )
        # Of several models it is not known whose memory it is.
        blamed = tuple(partition.models) if len(partition.models) == 1 else ()
        self._device.end(partition.id, cause, blamed)

    def _limit_bytes(self, key: str, engine: EngineSnapshot) -> int:
        entry = self._registry.by_key(key)
        stated = entry.model.terms.memory_limit_bytes if entry and entry.model else None
        if stated is not None:
            return stated
        deployed = engine.models.get(key)
        profile = deployed.profile if deployed else None
        measured = profile.weights_bytes + profile.activation_bytes if profile else 0
        return max(_TIMES * measured, _FLOOR_BYTES)

    def _check_idle(self, partition: PartitionSnapshot, pid: int) -> None:
        cpu_s = _cpu_s(pid)
        if cpu_s is None:
            return
        seen = self._seen.setdefault(pid, _WorkerUsage(cpu_s))
        idle = not partition.batches and partition.started_ms == seen.started_ms
        busy = cpu_s - seen.cpu_s > _BUSY_CORES * _PERIOD_S
        seen.looks = seen.looks + 1 if idle and partition.loaded and busy else 0
        used_pct = (cpu_s - seen.cpu_s) / _PERIOD_S * 100.0
        seen.cpu_s, seen.started_ms = cpu_s, partition.started_ms
        if seen.looks >= _BUSY_LOOKS and not seen.reported:
            seen.reported = True
            _log.warning(
                "worker %s (process %d) uses %.0f %% of a core while it has nothing to do: one of "
                "%s left threads running, which slows its neighbours",
                partition.id,
                pid,
                used_pct,
                ", ".join(sorted(partition.models)),
            )


def _own_bytes(pid: int) -> int | None:
    """A process's anonymous memory; ``None`` if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    _, found, rest = text.partition("\nRssAnon:")
    return int(rest.split(None, 1)[0]) << 10 if found else None


def _cpu_s(pid: int) -> float | None:
    """Processor time of a process and its threads; ``None`` if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) * _TICKS_S
