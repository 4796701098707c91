"""What a load run showed, a model at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from interlace.cli.loadgen import Flow, Sent
from interlace.profiling.sweep import quantile

#: Lateness of the generator itself above this part of the SLO makes its figures doubtful.
LAG_OF_SLO_MAX = 0.1


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


def summarise(flow: Flow, seconds: float) -> ModelLoadReport:
    """The figures of one flow that was sent over ``seconds``."""
    requests = len(flow.due_s)
    slo_ms = flow.ask.slo_ms
    well = [sent for sent in flow.sent if sent.status == 200]
    taken_ms = sorted(_latency_ms(sent) for sent in well)
    good = len(taken_ms) if slo_ms is None else sum(ms <= slo_ms for ms in taken_ms)
    turned_away = [sent for sent in flow.sent if sent.status not in (0, 200)]
    return ModelLoadReport(
        model=flow.ask.model,
        slo_ms=slo_ms,
        requests=requests,
        offered_rps=requests / seconds,
        answered_rps=len(well) / seconds,
        goodput_rps=good / seconds,
        attainment=good / requests if requests else 0.0,
        p50_ms=_quantile(taken_ms, 0.50),
        p95_ms=_quantile(taken_ms, 0.95),
        p99_ms=_quantile(taken_ms, 0.99),
        p999_ms=_quantile(taken_ms, 0.999),
        refused=dict(Counter(sent.reason for sent in turned_away).most_common()),
        refusal_p99_ms=_quantile(sorted(_service_ms(sent) for sent in turned_away), 0.99),
        unanswered=requests - len(well) - len(turned_away),
        crowded=sum(sent.crowded for sent in flow.sent),
        lag_p99_ms=_quantile(sorted(_lag_ms(sent) for sent in flow.sent if _on_us(sent)), 0.99),
    )


def _on_us(sent: Sent) -> bool:
    return sent.sent_s >= 0 and not sent.crowded


def _latency_ms(sent: Sent) -> float:
    return (sent.end_s - sent.due_s) * 1000.0


def _service_ms(sent: Sent) -> float:
    return (sent.end_s - sent.sent_s) * 1000.0


def _lag_ms(sent: Sent) -> float:
    return (sent.sent_s - sent.due_s) * 1000.0


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return quantile(ordered, share) if ordered else None
