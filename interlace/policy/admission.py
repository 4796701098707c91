"""Who comes in: everyone, or whoever can be served in time without breaking a promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interlace.core.request import Request
from interlace.policy.base import PartitionView, Refusal, View


def everyone(request: Request, view: View, now_ms: float) -> Refusal | None:
    """Accept; only the queue's bound limits."""
    return None


@dataclass(frozen=True, slots=True)
class Deadline:
    """Accept what is predicted to end by its deadline and makes no accepted request late.

    The prediction is the work that is to be served before this request in the partition that
    would end it first: what is left of the running batch, then the rows of every model there
    with a claim not after this one's, in batches of highest throughput, spread over the
    partitions that share them.
    """

    def __call__(self, request: Request, view: View, now_ms: float) -> Refusal | None:
        best_ms, harmless = float("inf"), False
        for host in view.hosts(request.model):
            start_ms, total_ms = _backlog(request, host, view, now_ms)
            own_ms = view.latency_ms(request.model, request.rows, host.share_pct, request.shape)
            late_ms = start_ms + own_ms - request.deadline_ms
            if late_ms <= 0 and _harmless(request, host, view, total_ms):
                return None
            if late_ms < best_ms:
                best_ms, harmless = late_ms, late_ms <= 0
        late_ms = max(best_ms, 0.0) if harmless else best_ms
        alone_ms = _alone_ms(request, view.hosts(request.model), view)
        hopeless = alone_ms > request.deadline_ms - request.arrived_ms
        return Refusal(late_ms, None if hopeless else max(late_ms, 1.0))


def _alone_ms(request: Request, hosts: Sequence[PartitionView], view: View) -> float:
    return min(
        (view.latency_ms(request.model, request.rows, host.share_pct, request.shape))
        for host in hosts
    )


def _backlog(
    request: Request, host: PartitionView, view: View, now_ms: float
) -> tuple[float, float]:
    """When this request could start at ``host``, and when everything queued there would end."""
    start_ms = total_ms = max(now_ms, host.free_at_ms)
    for slot in host.slots:
        queue = view.queue(slot.model)
        if queue.rows == 0:
            continue
        per_row_ms = row_ms(slot.model, host, view)
        total_ms += queue.rows * per_row_ms
        start_ms += queue.rows_before(request) * per_row_ms
    return start_ms, total_ms


def row_ms(model: str, host: PartitionView, view: View) -> float:
    """Time one queued row of ``model`` costs ``host``, shared with its other hosts."""
    batch = view.best_batch(model, host.share_pct)
    hosts = max(1, len(view.hosts(model)))
    return view.latency_ms(model, batch, host.share_pct) / (batch * hosts)


def _harmless(request: Request, host: PartitionView, view: View, total_ms: float) -> bool:
    """True if those who would have to let this request pass still end in time.

    Within one model of one SLO nobody is passed, so only a more urgent request than some tail
    is looked at.
    """
    added_ms = row_ms(request.model, host, view) * request.rows
    for slot in host.slots:
        tail_ms = view.queue(slot.model).tail_deadline_ms
        if request.deadline_ms < tail_ms < total_ms + added_ms:
            return False
    return True
