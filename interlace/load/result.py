"""What a run of load saw, and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from interlace.core.quantile import quantile

#: Status of a call that got no answer before the run ended.
UNANSWERED: Final = -2
#: Lateness of the generator itself above this part of the SLO makes its figures doubtful.
LAG_OF_SLO_MAX: Final = 0.1


class CallSample(NamedTuple):
    """One call: which (``tag``), when it was due, how long it took from then, how it ended.

    Times are seconds, ``due_s`` and ``sent_s`` from the start of the run (``sent_s`` below 0: it
    never left). ``status`` is that of HTTP, ``BROKEN`` or ``UNANSWERED``; ``reason`` the server's
    own for anything but 200. ``crowded``: every connection was taken when it was due.
    """

    tag: int
    due_s: float
    latency_s: float
    status: int
    sent_s: float = -1.0
    crowded: bool = False
    reason: str = ""


class LoadRun(NamedTuple):
    """A run: its samples, its length, and the share of it the generator was not asleep."""

    samples: list[CallSample]
    seconds: float
    busy: float


def percentile(values: Sequence[float], pct: float) -> float | None:
    """The smallest value that ``pct`` per cent do not exceed; None of nothing."""
    return quantile(sorted(values), pct / 100) if values else None


def lags_s(samples: Sequence[CallSample]) -> list[float]:
    """How late the generator sent each call for which it had a connection."""
    return [one.sent_s - one.due_s for one in samples if one.sent_s >= 0 and not one.crowded]


@dataclass(frozen=True, slots=True)
class ModelLoadReport:
    """One model's figures. Latencies in ms, from the time a request was due, of answers with 200.

    ``attainment`` is the part of all requests answered well within the SLO; ``lag_p99_ms`` how
    late the generator itself sent where a connection was free; ``crowded`` counts requests that
    had to wait for one.
    """

    model: str
    slo_ms: float | None
    requests: int
    offered_rps: float
    answered_rps: float
    goodput_rps: float
    attainment: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    refused: dict[str, int]
    refusal_p99_ms: float | None
    unanswered: int
    crowded: int
    lag_p99_ms: float | None

    @property
    def doubtful(self) -> bool:
        """The generator was too late for its figures to be believed."""
        if self.lag_p99_ms is None or self.slo_ms is None:
            return False
        return self.lag_p99_ms > LAG_OF_SLO_MAX * self.slo_ms


def report(
    model: str, slo_ms: float | None, samples: Sequence[CallSample], seconds: float
) -> ModelLoadReport:
    """The figures of one model's calls, which were sent over ``seconds``."""
    well_ms = sorted(s.latency_s * 1e3 for s in samples if s.status == 200)
    good = len(well_ms) if slo_ms is None else sum(taken <= slo_ms for taken in well_ms)
    refused = [s for s in samples if s.status not in (UNANSWERED, 200)]
    refused_after_ms = [(s.due_s + s.latency_s - s.sent_s) * 1e3 for s in refused]
    return ModelLoadReport(
        model=model,
        slo_ms=slo_ms,
        requests=len(samples),
        offered_rps=len(samples) / seconds,
        answered_rps=len(well_ms) / seconds,
        goodput_rps=good / seconds,
        attainment=good / len(samples) if samples else 0.0,
        p50_ms=percentile(well_ms, 50),
        p95_ms=percentile(well_ms, 95),
        p99_ms=percentile(well_ms, 99),
        p999_ms=percentile(well_ms, 99.9),
        refused=dict(Counter(s.reason for s in refused).most_common()),
        refusal_p99_ms=percentile(refused_after_ms, 99),
        unanswered=len(samples) - len(well_ms) - len(refused),
        crowded=sum(s.crowded for s in samples),
        lag_p99_ms=percentile([lag_s * 1e3 for lag_s in lags_s(samples)], 99),
    )
