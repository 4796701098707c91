"""Which requests are admitted: all, or those that end in time and make no others late."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from interlace.core.plan import Slot
from interlace.core.request import Request
from interlace.policy.batching import limit_rows
from interlace.policy.view import PartitionView, Refusal, View


def admit_all(request: Request, view: View, now_ms: float) -> Refusal | None:
    """Accept; only the queue's bound limits."""
    return None


@dataclass(frozen=True, slots=True)
class DeadlineAdmission:
    """Accept what is predicted to end by its deadline and makes no accepted request late.

    The prediction is the work that is to be served before this request in the partition that
    would end it first: what is left of the running batch, then the rows of every model there
    with a claim not after this one's, in batches of highest throughput, of each model the part
    that is planned there; and a margin that the engine widens when promises break.

    A request may pass accepted ones that are less urgent only if they still end in time, or if its
    own work is at most ``lenience`` of the time they have left: else a queue that is full to its
    last deadline would keep out the shortest requests, which cost it nothing.
    """

    lenience: float = 0.02

    def __call__(self, request: Request, view: View, now_ms: float) -> Refusal | None:
        best_ms, harmless = inf, False
        model, alone_ms = view.model(request.model), inf
        for host in model.hosts:
            own_ms = model.latency_ms(request.rows, host.share_pct, request.shape)
            alone_ms = min(alone_ms, own_ms)
            late_ms, fair = self._outlook(request, host, view, now_ms, own_ms)
            if late_ms <= 0 and fair:
                return None
            if late_ms < best_ms:
                best_ms, harmless = late_ms, late_ms <= 0
        if model.lenders and self._is_lent(request, view, now_ms):
            return None
        late_ms = max(best_ms, 0.0) if harmless else best_ms
        hopeless = alone_ms > request.deadline_ms - request.arrived_ms
        return Refusal(late_ms, None if hopeless else max(late_ms, 1.0))

    def _is_lent(self, request: Request, view: View, now_ms: float) -> bool:
        """True if a partition that lends its time has enough of it left after its own models."""
        model = view.model(request.model)
        ahead_rows = view.queue(request.model).rows_before(request) + request.rows
        for host in model.lenders:
            slot = next(s for s in host.slots if s.model == request.model)
            run_ms = model.latency_ms(slot.batch, host.share_pct, request.shape)
            start_ms = max(now_ms, host.free_at_ms)
            start_ms += sum(
                row_ms(own, host, view) * view.queue(own.model).rows
                for own in host.slots
                if not own.guest
            )
            batches = -(-ahead_rows // slot.batch)
            end_ms = start_ms + batches * run_ms + model.admission_margin_ms
            if end_ms <= request.deadline_ms:
                return True
        return False

    def _outlook(
        self, request: Request, host: PartitionView, view: View, now_ms: float, own_ms: float
    ) -> tuple[float, bool]:
        """How late this request would be at ``host``, and whether it would make no other late.

        It makes those behind it late if all that is queued, it included, ends after the last of
        their deadlines. Requests of one model and one SLO are served in order of arrival, so this
        can happen only to queues whose tail is less urgent than the request.
        """
        start_ms = total_ms = max(now_ms, host.free_at_ms)
        tail_ms, added_ms = inf, own_ms
        for slot in host.slots:
            if slot.guest:
                continue  # a guest waits for the others, not they for it
            queue = view.queue(slot.model)
            rows = queue.rows
            if slot.model == request.model:
                added_ms = row_ms(slot, host, view) * request.rows
            if rows:
                per_row_ms = row_ms(slot, host, view)
                total_ms += rows * per_row_ms
                start_ms += queue.rows_before(request) * per_row_ms
                if request.deadline_ms < queue.tail_deadline_ms < tail_ms:
                    tail_ms = queue.tail_deadline_ms
        # A request that need not wait needs no margin: the execution alone is known well enough.
        margin_ms = view.model(request.model).admission_margin_ms if start_ms > now_ms else 0.0
        late_ms = start_ms + own_ms + margin_ms - request.deadline_ms
        if tail_ms == inf:
            return late_ms, True
        passes = added_ms <= self.lenience * (tail_ms - now_ms)
        return late_ms, passes or total_ms + added_ms <= tail_ms


def row_ms(slot: Slot, host: PartitionView, view: View) -> float:
    """Time one queued row of a slot's model costs ``host``: its planned part of a row."""
    model = view.model(slot.model)
    batch = limit_rows(slot, host, model)
    return model.latency_ms(batch, host.share_pct) / batch * host.parts.get(slot.model, 1.0)
