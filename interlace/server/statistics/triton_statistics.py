"""One model's statistics in the shape of Triton's statistics: every field that clients read."""

from __future__ import annotations

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
