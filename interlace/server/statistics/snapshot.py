"""Statistics as they are shown: the metrics page's figures of one instant, Triton's answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from interlace.engine.snapshot import WeightsSnapshot
from interlace.server.model_table import ServedModel
from interlace.server.statistics.model_statistics import Duration, ModelStatistics

NS_PER_US = 1000
NS_PER_MS = 1_000_000


def model_statistics(
    served: ServedModel, wall_offset_ms: float, resident_bytes: int | None
) -> dict[str, object]:
    """``model_stats`` entry of one version.

    ``wall_offset_ms`` turns the runtime's clock into ms since 1970.
    """
    statistics = served.statistics
    memory = [] if resident_bytes is None else [_memory(resident_bytes)]
    return {
        "name": served.model.name,
        "version": str(served.model.version),
        "last_inference": round(statistics.last_ms + wall_offset_ms) if statistics.success else 0,
        "inference_count": statistics.rows,
        "execution_count": statistics.executions,
        "inference_stats": _inference(statistics),
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": _part(count, input_ms),
                "compute_infer": _part(count, infer_ms),
                "compute_output": _part(count, output_ms),
            }
            for rows, (count, input_ms, infer_ms, output_ms) in sorted(statistics.batches.items())
        ],
        "memory_usage": memory,
    }


def _inference(statistics: ModelStatistics) -> dict[str, object]:
    none = {"count": 0, "ns": 0}
    return {
        "success": _duration(statistics.request),
        "fail": {
            "count": sum(statistics.failures.values()),
            "ns": round(statistics.fail_us * NS_PER_US),
        },
        "queue": _duration(statistics.queue),
        "compute_input": _duration(statistics.compute_input),
        "compute_infer": _duration(statistics.compute_infer),
        "compute_output": _duration(statistics.compute_output),
        "cache_hit": none,
        "cache_miss": none,
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": round(duration.sum_us * NS_PER_US)}


def _part(count: int, total_ms: float) -> dict[str, int]:
    return {"count": count, "ns": round(total_ms * NS_PER_MS)}


def _memory(nbytes: int) -> dict[str, object]:
    return {"type": "CPU", "id": 0, "byte_size": nbytes}


@dataclass(frozen=True, slots=True)
class ModelGauges:
    """One deployment: its part of the accelerators, what it holds, what waits for it."""

    share_pct: float = 0.0
    resident_bytes: int = 0
    queue_rows: int = 0
    capacity_rows_per_s: float | None = None  #: rows per second that the plan says it can serve
    weights: WeightsSnapshot | None = None  #: over all accelerators, where they come and go


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
