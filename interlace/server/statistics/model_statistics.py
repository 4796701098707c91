"""What one model has answered: counts, times and histograms for statistics and metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from interlace.core.errors import ServeError
from interlace.core.request import Outcome, Reply

#: Upper bounds of the latency histograms, in us.
BUCKETS_US: Final = (
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000,
    100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
)  # fmt: skip

_OK, _LATE = Outcome.OK, Outcome.LATE
_FAILURES: Final = (Outcome.REFUSED, Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FAILED)


@dataclass(slots=True)
class Duration:
    """A count, a sum in us, and a true histogram."""

    count: int = 0
    sum_us: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_US) + 1))

    def add(self, value_us: float) -> None:
        self.count += 1
        self.sum_us += value_us
        self.buckets[bisect_left(BUCKETS_US, value_us)] += 1


@dataclass(slots=True)
class ModelStatistics:
    """Counts of one deployed name and version since it was first served."""

    success: int = 0
    rows: int = 0
    executions: int = 0
    last_ms: float = 0.0
    within_slo: int = 0
    failures: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(_FAILURES, 0))
    refusals: dict[str, int] = field(default_factory=dict)
    pending: int = 0
    request: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    fail_us: float = 0.0
    batches: dict[int, tuple[int, float, float, float]] = field(default_factory=dict)

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """How many calls ended in each way."""
        late = self.success - self.within_slo
        return {_OK: self.within_slo, _LATE: late, **self.failures}

    def record(self, reply: Reply, now_ms: float) -> None:
        """Enter one reply that ended at ``now_ms`` on the runtime's clock."""
        outcome, request, timing = reply.outcome, reply.request, reply.timing
        total_us = (now_ms - request.arrived_ms) * 1000.0
        if outcome is _OK:
            self.within_slo += 1
        elif outcome is not _LATE:
            self._record_failure(reply, total_us)
            return
        self.success += 1
        self.rows += request.rows
        self.last_ms = now_ms
        self.request.add(total_us)
        self.queue.add(timing.queue_ms * 1000.0)
        self.compute_input.add(timing.input_ms * 1000.0)
        self.compute_infer.add(timing.infer_ms * 1000.0)
        self.compute_output.add(timing.output_ms * 1000.0)

    def refused(self, error: ServeError) -> None:
        """Enter a call that never became a request: malformed, or not taken."""
        self.failures[Outcome.REFUSED] += 1
        self._count(error)

    def executed(self, rows: int, input_ms: float, infer_ms: float, output_ms: float) -> None:
        """Enter one execution of a batch of ``rows``."""
        self.executions += 1
        n, i, c, o = self.batches.get(rows, (0, 0.0, 0.0, 0.0))
        self.batches[rows] = (n + 1, i + input_ms, c + infer_ms, o + output_ms)

    def _record_failure(self, reply: Reply, total_us: float) -> None:
        self.failures[reply.outcome] += 1
        self.fail_us += total_us
        if reply.error is not None:
            self._count(reply.error)

    def _count(self, error: ServeError) -> None:
        reason = error.reason.value
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
