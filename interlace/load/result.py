"""What a run of load saw, and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

#: Status of a call that got no answer before the run ended.
UNANSWERED = -2


class CallSample(NamedTuple):
    """One call: which (``tag``), when it was due after the start, how long, how it ended."""

    tag: int
    due_s: float
    latency_s: float
    status: int


class LoadRun(NamedTuple):
    """A run: its samples, its length, and the share of it the generator was not asleep."""

    samples: list[CallSample]
    seconds: float
    busy: float


def percentile(values: Sequence[float], pct: float) -> float | None:
    """The smallest value that ``pct`` per cent do not exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(pct / 100 * len(ordered)))]


def ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1e3, 3)


def figures(run: LoadRun, keep: Callable[[CallSample], bool] = lambda _: True) -> dict[str, Any]:
    """Counts by status, answered requests per second, latency of the good ones in ms."""
    kept = [sample for sample in run.samples if keep(sample)]
    good = [sample.latency_s for sample in kept if sample.status == 200]
    return {
        "calls": len(kept),
        "ok": len(good),
        "statuses": {str(k): v for k, v in sorted(Counter(s.status for s in kept).items())},
        "seconds": round(run.seconds, 3),
        "rps": round(len(good) / run.seconds, 1),
        "p50_ms": ms(percentile(good, 50)),
        "p99_ms": ms(percentile(good, 99)),
        "max_ms": ms(max(good, default=None)),
        "client_busy": round(run.busy, 3),
    }


def goodput_rps(samples: Sequence[CallSample], slo_ms: float, seconds: float) -> float:
    """Replies within the SLO, counted from when each call was due, per second offered."""
    return sum(s.status == 200 and s.latency_s * 1e3 <= slo_ms for s in samples) / seconds
