"""Monitors worker processes: memory beyond their limit, and processor use while idle."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from interlace.control.registry import VersionRegistry
from interlace.device.cpu.device import CpuDevice
from interlace.engine.snapshot import EngineSnapshot, PartitionSnapshot

_log = logging.getLogger(__name__)

_PERIOD_S: Final = 1.0
#: What a model without a limit may hold in one worker: so many times its profile, and at least.
_TIMES: Final = 2
_FLOOR_BYTES: Final = 512 << 20
#: A worker that used so much of a core while it had nothing to do, so many times in a row.
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


class WorkerMonitor:
    """Replaces workers that hold too much memory; warns of those that compute while idle.

    Memory is what a process has for itself beyond what it was forked with. Its limit is the sum of
    its models' ``memory_limit``, or of twice their profiles, at least 512 MiB each.
    """

    def __init__(
        self, device: CpuDevice, engine: Callable[[], EngineSnapshot], registry: VersionRegistry
    ) -> None:
        self._device = device
        self._engine = engine
        self._registry = registry
        self._seen: dict[int, _WorkerUsage] = {}

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
