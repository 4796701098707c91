"""Statistics as they are shown: Triton's answers, and the metrics page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Final

from interlace.core.errors import Reason
from interlace.core.request import Outcome
from interlace.engine.snapshot import WeightsSnapshot
from interlace.server.model_table import (
    BUCKETS_US,
    Duration,
    ModelStatistics,
    ModelTable,
    ServedModel,
)

NS_PER_US = 1000
NS_PER_MS = 1_000_000


def model_statistics(
    served: ServedModel, wall_offset_ms: float, resident_bytes: int | None
) -> dict[str, object]:
    """``model_stats`` entry of one version.

    ``wall_offset_ms`` turns the runtime's clock into ms since 1970.
    """
    statistics = served.statistics
    memory: list[dict[str, object]] = []
    if resident_bytes is not None:
        memory = [{"type": "CPU", "id": 0, "byte_size": resident_bytes}]
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


@dataclass(frozen=True, slots=True)
class ModelGauges:
    """One deployment: its part of the accelerators, what it holds, what waits for it."""

    share_pct: float = 0.0
    resident_bytes: int = 0
    queue_rows: int = 0
    capacity_rows_per_s: float | None = None  #: rows per second that the plan says it can serve
    weights: WeightsSnapshot | None = None  #: over all accelerators, if swapped


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
    loop_delays: Duration = field(default_factory=Duration)
    cpu: CpuGauges | None = None
    gpus: tuple[GpuGauges, ...] = ()


Labels = Mapping[str, str]
_BOUND: Final = "\0"  #: stands for the bound in what a histogram's lines have in common


class MetricsPage:
    """Families of samples in the order they are first named."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def family(self, name: str, kind: str, help: str) -> None:
        """Begin a family; its samples come under it wherever they are added."""
        self._families[name] = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]

    def add(self, name: str, value: float, labels: Labels | None = None) -> None:
        """One sample of a counter or gauge."""
        self._families[name].append(f"{name}{_labels(labels or {})} {number(value)}")

    def add_histogram(
        self, name: str, duration: Duration, labels: Labels, unit_us: float = 1.0
    ) -> None:
        """One histogram; ``unit_us`` is the family's unit in us."""
        total = duration.sum_us / unit_us
        self.add_counts(name, _bounds(unit_us), duration.buckets, total, labels)

    def add_counts(
        self, name: str, bounds: Sequence[str], counts: Sequence[int], total: float, labels: Labels
    ) -> None:
        """One histogram by the counts of its buckets, whose upper ends are ``bounds``."""
        lines = self._families[name]
        begin, end = f"{name}_bucket{_labels({**labels, 'le': _BOUND})}".split(_BOUND)
        for bound, count in zip(bounds, accumulate(counts), strict=True):
            lines.append(f"{begin}{bound}{end} {count}")
        lines.append(f"{name}_sum{_labels(labels)} {number(total)}")
        lines.append(f"{name}_count{_labels(labels)} {sum(counts)}")

    def text(self) -> str:
        """The page; families without samples are left out."""
        filled: Sequence[list[str]] = [f for f in self._families.values() if len(f) > 2]
        return "".join(f"{line}\n" for family in filled for line in family)


@cache
def _bounds(unit_us: float) -> tuple[str, ...]:
    return (*(number(bound / unit_us) for bound in BUCKETS_US), "+Inf")


def number(value: float) -> str:
    """A value in plain decimals, to a millionth."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    plain = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return plain.encode("ascii", "backslashreplace").decode("ascii")


US_PER_MS: Final = 1000.0
DURATIONS: Final = ("request", "queue", "compute_input", "compute_infer", "compute_output")
#: Calls refused for what they are, not for want of capacity.
_CALLER: Final = (
    Reason.BAD_INPUT,
    Reason.UNKNOWN_MODEL,
    Reason.UNSUPPORTED,
    Reason.UNAUTHORIZED,
    Reason.TOO_LARGE,
)

_FAMILIES: Final = (
    ("nv_inference_request_success", "counter", "Requests answered"),
    ("nv_inference_request_failure", "counter", "Errors by reason; not of what cannot be parsed"),
    ("nv_inference_count", "counter", "Rows inferred; a batch of n counts n"),
    ("nv_inference_exec_count", "counter", "Executions of a batch"),
    ("nv_inference_pending_request_count", "gauge", "Requests accepted and not answered yet"),
    *(
        (f"nv_inference_{d}_duration_us", "counter", f"Sum of {d} durations in us")
        for d in DURATIONS
    ),
    *(
        (f"nv_inference_{d}_duration_histogram_us", "histogram", f"{d} durations in us")
        for d in DURATIONS
    ),
    ("nv_inference_first_response_histogram_ms", "histogram", "Arrival to response in ms"),
    ("interlace_model_ready", "gauge", "1 while the model is served, 0 while it is not"),
    ("interlace_slo_ms", "gauge", "SLO in ms"),
    ("interlace_slo_within_total", "counter", "Accepted requests answered within their SLO"),
    ("interlace_slo_missed_total", "counter", "Accepted requests answered late, or not at all"),
    ("interlace_slo_attainment_ratio", "gauge", "Share of accepted requests within their SLO"),
    ("interlace_stream_first_within_total", "counter", "First responses within first_response_ms"),
    ("interlace_stream_first_missed_total", "counter", "First responses after first_response_ms"),
    ("interlace_stream_gap_within_total", "counter", "Responses within gap_ms of the one before"),
    ("interlace_stream_gap_missed_total", "counter", "Responses after more than gap_ms"),
    ("interlace_stream_gap_ms", "histogram", "Time between two responses in ms"),
    ("interlace_refusals_total", "counter", "Errors by reason; not of what cannot be parsed"),
    ("interlace_stage_requests_total", "counter", "Requests that a stage of an app answered"),
    ("interlace_stage_wait_ms_total", "counter", "Total time that they waited in ms"),
    ("interlace_stage_run_ms_total", "counter", "Total time from the end of their waits in ms"),
    ("interlace_stage_slack_ms_total", "counter", "Total time that they left of theirs in ms"),
    ("interlace_queue_rows", "gauge", "Rows waiting for a batch"),
    ("interlace_model_share_pct", "gauge", "Planned share of an accelerator in percent"),
    ("interlace_model_resident_bytes", "gauge", "Memory that the model holds"),
    ("interlace_model_capacity_rows_per_s", "gauge", "Rows per second that the plan can serve"),
    ("interlace_model_weights_state", "gauge", "1 for the state: resident, loading or cold"),
    ("interlace_model_weights_bytes", "gauge", "All weights"),
    ("interlace_model_weights_held_bytes", "gauge", "Weights in the memory for swapped weights"),
    ("interlace_cold_starts_total", "counter", "Loads of weights that requests waited for"),
    ("interlace_cold_start_ms_total", "counter", "Total time of those loads in ms"),
    ("interlace_headroom_ratio", "gauge", "Factor by which rates could grow; below 1: refusals"),
    ("interlace_workers", "gauge", "Worker processes alive"),
    ("interlace_worker_restarts_total", "counter", "Worker processes that were replaced"),
    ("interlace_requests_in_flight", "gauge", "Requests of all models not answered yet"),
    ("interlace_connections", "gauge", "HTTP connections open"),
    ("interlace_arena_used_bytes", "gauge", "Shared memory holding request bodies"),
    ("interlace_arena_size_bytes", "gauge", "Shared memory that request bodies may use"),
    ("interlace_loop_delay_ms", "histogram", "How late timers of the server's loop run, in ms"),
    ("nv_cpu_utilization", "gauge", "Use of all processors, 0 to 1"),
    ("nv_cpu_memory_total_bytes", "gauge", "Memory of the machine"),
    ("nv_cpu_memory_used_bytes", "gauge", "Memory in use"),
    ("nv_gpu_utilization", "gauge", "Use of the GPU, 0 to 1"),
    ("nv_gpu_memory_total_bytes", "gauge", "Memory of the GPU"),
    ("nv_gpu_memory_used_bytes", "gauge", "GPU memory in use"),
    ("nv_gpu_power_usage", "gauge", "Power drawn in watts"),
    ("nv_gpu_power_limit", "gauge", "Power limit in watts"),
    ("nv_energy_consumption", "counter", "Energy used in joules since the driver started"),
)


OWN_FAMILIES: Final = frozenset(name for name, _, _ in _FAMILIES)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Renders the page from the statistics and a snapshot taken when it is asked for."""

    _table: ModelTable
    _snapshot: Callable[[], ServerSnapshot]
    #: Adds the metrics of models' code.
    _add_custom: Callable[[MetricsPage], None] = lambda page: None

    def render(self) -> str:
        """The page, in ASCII."""
        page = MetricsPage()
        for name, kind, help in _FAMILIES:
            page.family(name, kind, help)
        snapshot = self._snapshot()
        for served in self._table.all():
            labels = {"model": served.model.name, "version": str(served.model.version)}
            _add_triton(page, served.statistics, labels)
            _add_promises(page, served, labels)
            _add_figures(page, served, snapshot, labels)
        for (name, version), ready in snapshot.ready.items():
            page.add("interlace_model_ready", int(ready), {"model": name, "version": version})
        _add_server(page, snapshot)
        if snapshot.cpu is not None:
            _add_cpu(page, snapshot.cpu)
        for gpu in snapshot.gpus:
            _add_gpu(page, gpu)
        self._add_custom(page)
        return page.text()


def _add_triton(page: MetricsPage, statistics: ModelStatistics, labels: Labels) -> None:
    page.add("nv_inference_request_success", statistics.success, labels)
    for reason, count in _failures(statistics).items():
        page.add("nv_inference_request_failure", count, {**labels, "reason": reason})
    page.add("nv_inference_count", statistics.rows, labels)
    page.add("nv_inference_exec_count", statistics.executions, labels)
    page.add("nv_inference_pending_request_count", statistics.pending, labels)
    for name in DURATIONS:
        duration: Duration = getattr(statistics, name)
        page.add(f"nv_inference_{name}_duration_us", round(duration.sum_us), labels)
        page.add_histogram(f"nv_inference_{name}_duration_histogram_us", duration, labels)
    name, streams = "nv_inference_first_response_histogram_ms", statistics.streams
    first = streams.first.durations
    page.add_histogram(name, first if first.count else statistics.request, labels, US_PER_MS)
    if first.count:
        page.add_histogram("interlace_stream_gap_ms", streams.gap.durations, labels, US_PER_MS)


def _failures(statistics: ModelStatistics) -> dict[str, int]:
    ended = statistics.failures
    other = sum(statistics.refusals.get(reason.value, 0) for reason in _CALLER)
    return {
        "REJECTED": max(0, ended[Outcome.REFUSED] + ended[Outcome.EXPIRED] - other),
        "CANCELED": ended[Outcome.CANCELLED],
        "BACKEND": ended[Outcome.FAILED],
        "OTHER": other,
    }


def _add_promises(page: MetricsPage, served: ServedModel, labels: Labels) -> None:
    statistics = served.statistics
    ended = statistics.failures
    late = statistics.success - statistics.within_slo
    missed = late + ended[Outcome.EXPIRED] + ended[Outcome.FAILED]
    page.add("interlace_slo_ms", float(served.model.terms.slo_ms), labels)
    page.add("interlace_slo_within_total", statistics.within_slo, labels)
    page.add("interlace_slo_missed_total", missed, labels)
    if statistics.within_slo + missed:
        ratio = statistics.within_slo / (statistics.within_slo + missed)
        page.add("interlace_slo_attainment_ratio", ratio, labels)
    for stage, totals in statistics.stages.items():
        named = {**labels, "stage": stage}
        page.add("interlace_stage_requests_total", totals.count, named)
        page.add("interlace_stage_wait_ms_total", totals.wait_ms, named)
        page.add("interlace_stage_run_ms_total", totals.run_ms, named)
        page.add("interlace_stage_slack_ms_total", totals.slack_ms, named)
    for what, promised in (("first", statistics.streams.first), ("gap", statistics.streams.gap)):
        if promised.within or promised.missed:
            page.add(f"interlace_stream_{what}_within_total", promised.within, labels)
            page.add(f"interlace_stream_{what}_missed_total", promised.missed, labels)
    for reason, count in sorted(statistics.refusals.items()):
        page.add("interlace_refusals_total", count, {**labels, "reason": reason})


def _add_figures(
    page: MetricsPage, served: ServedModel, snapshot: ServerSnapshot, labels: Labels
) -> None:
    figures = snapshot.models.get(served.key)
    if figures is None:
        return
    page.add("interlace_queue_rows", figures.queue_rows, labels)
    page.add("interlace_model_share_pct", figures.share_pct, labels)
    page.add("interlace_model_resident_bytes", figures.resident_bytes, labels)
    if figures.capacity_rows_per_s is not None:
        page.add("interlace_model_capacity_rows_per_s", figures.capacity_rows_per_s, labels)
    if figures.weights is not None:
        _add_weights(page, figures.weights, labels)


def _add_weights(page: MetricsPage, weights: WeightsSnapshot, labels: Labels) -> None:
    for state in ("resident", "loading", "cold"):
        now = int(state == weights.state)
        page.add("interlace_model_weights_state", now, {**labels, "state": state})
    page.add("interlace_model_weights_bytes", weights.total_bytes, labels)
    page.add("interlace_model_weights_held_bytes", weights.held_bytes, labels)
    page.add("interlace_cold_starts_total", weights.cold_starts, labels)
    page.add("interlace_cold_start_ms_total", weights.cold_ms, labels)


def _add_server(page: MetricsPage, snapshot: ServerSnapshot) -> None:
    if snapshot.headroom_ratio is not None:
        page.add("interlace_headroom_ratio", snapshot.headroom_ratio)
    page.add("interlace_workers", snapshot.workers)
    page.add("interlace_worker_restarts_total", snapshot.worker_restarts)
    page.add("interlace_requests_in_flight", snapshot.in_flight)
    page.add("interlace_connections", snapshot.connections)
    page.add("interlace_arena_used_bytes", snapshot.arena_used_bytes)
    page.add("interlace_arena_size_bytes", snapshot.arena_size_bytes)
    page.add_histogram("interlace_loop_delay_ms", snapshot.loop_delays, {}, US_PER_MS)


def _add_cpu(page: MetricsPage, cpu: CpuGauges) -> None:
    page.add("nv_cpu_utilization", cpu.utilization)
    page.add("nv_cpu_memory_total_bytes", cpu.memory_total_bytes)
    page.add("nv_cpu_memory_used_bytes", cpu.memory_used_bytes)


def _add_gpu(page: MetricsPage, gpu: GpuGauges) -> None:
    labels = {"gpu_uuid": gpu.uuid}  # exactly this label: perf_analyzer's pattern allows no other
    page.add("nv_gpu_utilization", gpu.utilization, labels)
    page.add("nv_gpu_memory_total_bytes", gpu.memory_total_bytes, labels)
    page.add("nv_gpu_memory_used_bytes", gpu.memory_used_bytes, labels)
    page.add("nv_gpu_power_usage", gpu.power_usage_w, labels)
    page.add("nv_gpu_power_limit", gpu.power_limit_w, labels)
    page.add("nv_energy_consumption", gpu.energy_j, labels)
