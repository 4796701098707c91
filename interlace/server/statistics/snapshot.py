"""What the metrics page shows besides the statistics of models: figures of one instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WeightsGauges:
    """Weights of one deployment that come and go, over all accelerators.

    ``state`` is "resident", "loading" or "cold"; ``held_bytes`` are in the memory for weights.
    """

    state: str
    held_bytes: int
    total_bytes: int
    cold_starts: int
    cold_ms: float


@dataclass(frozen=True, slots=True)
class ModelGauges:
    """One deployment: its part of the accelerators, what it holds, what waits for it."""

    share_pct: float = 0.0
    resident_bytes: int = 0
    queue_rows: int = 0
    capacity_rows_per_s: float | None = None  #: rows per second that the plan says it can serve
    weights: WeightsGauges | None = None  #: where they come and go


@dataclass(frozen=True, slots=True)
class GpuGauges:
    """One GPU, as NVML reports it; ``utilization`` is in 0..1."""

    uuid: str
    utilization: float
    memory_total_bytes: int
    memory_used_bytes: int
    power_usage_w: float
    power_limit_w: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class CpuGauges:
    """The machine's processors and memory; ``utilization`` is in 0..1 since the last look."""

    utilization: float
    memory_total_bytes: int
    memory_used_bytes: int


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """Figures of the whole server.

    ``models`` is by deployment key, ``ready`` (is it served?) by name and version.
    """

    models: Mapping[str, ModelGauges] = field(default_factory=dict)
    ready: Mapping[tuple[str, str], bool] = field(default_factory=dict)
    headroom_ratio: float | None = None
    workers: int = 0
    worker_restarts: int = 0
    in_flight: int = 0
    connections: int = 0
    arena_used_bytes: int = 0
    arena_size_bytes: int = 0
    cpu: CpuGauges | None = None
    gpus: tuple[GpuGauges, ...] = ()
