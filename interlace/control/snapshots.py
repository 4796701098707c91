"""Gauges of a running server, for the metrics page and the table that `serve` prints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from interlace.control.registry import VersionRegistry
from interlace.engine.snapshot import EngineSnapshot, WeightsSnapshot
from interlace.server.model_table import Duration
from interlace.server.statistics import CpuGauges, ModelGauges, ServerSnapshot
from interlace.shm.arena import Arena


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one deployment runs: a partition, its cores or SMs, its share, its planned batch."""

    model: str
    gpu: str
    partition: str
    units: tuple[int, ...]
    share_pct: int
    batch: int
    rows_per_s: float


def placements(engine: EngineSnapshot) -> list[Placement]:
    """Every loaded slot of every ready partition."""
    return [
        Placement(
            slot.model, live.gpu, live.id, live.units, live.share_pct, slot.batch, slot.rows_per_s
        )
        for live in sorted(engine.partitions.values(), key=lambda live: live.id)
        for slot in live.slots
    ]


class _Processor:
    """Use of the machine's processors since the last look."""

    def __init__(self) -> None:
        self._last = _ticks()

    def look(self) -> CpuGauges | None:
        """``None`` where /proc does not say."""
        now, memory = _ticks(), _memory_bytes()
        if now is None or memory is None:
            return None
        busy, total = (0, 0) if self._last is None else self._last
        self._last = now
        passed = now[1] - total
        utilization = (now[0] - busy) / passed if passed > 0 else 0.0
        return CpuGauges(min(max(utilization, 0.0), 1.0), *memory)


@dataclass(slots=True)
class SnapshotSource:
    """Takes snapshots of a running server."""

    _engine: Callable[[], EngineSnapshot]
    _arena: Arena
    _registry: VersionRegistry
    _in_flight: Callable[[], int]
    _connections: Callable[[], int]
    _loop_delays: Duration
    _processor: _Processor = field(default_factory=_Processor)

    def snapshot(self) -> ServerSnapshot:
        """Everything that the metrics page shows besides counters."""
        engine = self._engine()
        places: defaultdict[str, list[Placement]] = defaultdict(list)
        for place in placements(engine):
            places[place.model].append(place)
        return ServerSnapshot(
            models={key: _gauges(key, places[key], engine) for key in engine.models},
            ready=self._registry.ready(),
            headroom_ratio=engine.target.headroom,
            workers=len(engine.partitions),
            worker_restarts=engine.partitions_lost,
            in_flight=self._in_flight(),
            connections=self._connections(),
            arena_used_bytes=self._arena.used_bytes,
            arena_size_bytes=self._arena.size_bytes,
            loop_delays=self._loop_delays,
            cpu=self._processor.look(),
        )

    def weights_states(self) -> dict[str, str]:
        """By deployment key: "resident", "loading" or "cold"; swapped weights only."""
        found = {key: _weights(one.weights.values()) for key, one in self._engine().models.items()}
        return {key: weights.state for key, weights in found.items() if weights is not None}

    def resident_bytes(self, key: str) -> int | None:
        """Memory that a deployment holds over all partitions; ``None`` if it is loaded nowhere."""
        return _resident_bytes(key, self._engine())


def _resident_bytes(key: str, engine: EngineSnapshot) -> int | None:
    held = [
        live.resident_bytes[key]
        for live in engine.partitions.values()
        if key in live.resident_bytes
    ]
    return sum(held) if held else None


def _gauges(key: str, here: Sequence[Placement], engine: EngineSnapshot) -> ModelGauges:
    planned_rows_per_s = sum(place.rows_per_s for place in here)
    return ModelGauges(
        share_pct=float(sum(place.share_pct for place in here)),
        resident_bytes=_resident_bytes(key, engine) or 0,
        queue_rows=engine.models[key].waiting_rows,
        capacity_rows_per_s=planned_rows_per_s if engine.target.headroom is not None else None,
        weights=_weights(engine.models[key].weights.values()),
    )


def _weights(places: Collection[WeightsSnapshot]) -> WeightsSnapshot | None:
    """All places together, in the best of their states."""
    if not places:
        return None
    states = {one.state for one in places}
    return WeightsSnapshot(
        next(state for state in ("resident", "loading", "cold") if state in states),
        sum(one.held_bytes for one in places),
        sum(one.total_bytes for one in places),
        sum(one.cold_starts for one in places),
        sum(one.cold_ms for one in places),
    )


def _ticks() -> tuple[int, int] | None:
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    values = [int(field) for field in fields]
    total = sum(values)
    return total - values[3] - values[4], total


def _memory_bytes() -> tuple[int, int] | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    total = kib["MemTotal"] * 1024
    return total, total - kib.get("MemAvailable", 0) * 1024
