"""Which requests are admitted: all, or those that end in time and make no others late."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from interlace.core.node import ModelOutlook
from interlace.core.plan import Slot
from interlace.core.request import Request
from interlace.policy.batching import limit_rows
from interlace.policy.decision import Refusal
from interlace.policy.fairness import planned_rows_per_s
from interlace.policy.view import PartitionView, View

#: Sums of parts that are equal on paper differ by less.
_ROUNDING: Final = 1e-9


def admit_all(request: Request, view: View, now_ms: float) -> Refusal | None:
    """Accept; only the queue's bound limits."""
    return None


@dataclass(frozen=True, slots=True)
class DeadlineAdmission:
    """Accept a request that is predicted to end in time and makes no accepted request late.

    The prediction is for the partition that would end the request first. It adds up the rest of
    the running batch and the rows of every model there with a claim not after this one's. Rows are
    taken in batches of highest throughput, of each model the part that is planned there. A margin
    is added, which the engine widens when promises break, and for a cold model its load time.

    A request may pass less urgent accepted ones only if they still end in time, or if its own work
    is at most ``lenience`` of the time they have left. Otherwise a queue that is full to its last
    deadline would keep out the shortest requests, which cost it nothing.

    The first stage of an app is accepted if the later ones would be, too. Stages that follow
    accepted requests count as queued. A later stage itself is always accepted.
    """

    lenience: float = 0.02

    def __call__(self, request: Request, view: View, now_ms: float) -> Refusal | None:
        part = request.part
        if part is None:
            return self._judge(request, view, now_ms)
        if part.begun:
            return None  # its work would be lost: it expires where it cannot be in time
        refusal = self._judge(request, view, now_ms)
        for stage in part.later if refusal is None else ():
            if refusal is None and view.serves(stage.model):
                row = Request(_LAST, stage.model, now_ms, stage.deadline_ms, stage.rows)
                refusal = self._judge(row, view, now_ms)
        return refusal

    def _judge(self, request: Request, view: View, now_ms: float) -> Refusal | None:
        best_ms, harmless = inf, False
        model, alone_ms = view.model(request.model), inf
        cold_ms = max(0.0, model.ready_ms - now_ms)
        for host in model.hosts:
            own_ms = model.latency_ms(request.rows, host.share_pct, request.shape)
            alone_ms = min(alone_ms, own_ms)
            late_ms, fair = self._outlook(request, host, view, now_ms, own_ms)
            if len(host.rivals) > 1:
                late_ms = max(late_ms, _crowded_ms(request, host, view, now_ms) + own_ms)
            if cold_ms > 0.0:
                end_ms = now_ms + cold_ms + own_ms + model.admission_margin_ms
                late_ms = max(late_ms, end_ms - request.deadline_ms)
            if late_ms <= 0 and fair:
                return None
            if late_ms < best_ms:
                best_ms, harmless = late_ms, late_ms <= 0
        if model.lenders:
            lent_ms, run_ms = self._lent_ms(request, view, now_ms)
            if lent_ms <= 0.0:
                return None
            if not model.hosts:
                best_ms, alone_ms = lent_ms, run_ms
        late_ms = max(best_ms, 0.0) if harmless else best_ms
        hopeless = alone_ms > request.deadline_ms - request.arrived_ms
        retry_after_ms = None if hopeless else max(late_ms, cold_ms, 1.0)
        return Refusal(late_ms, retry_after_ms, cold_ms=cold_ms, model=request.model)

    def _lent_ms(self, request: Request, view: View, now_ms: float) -> tuple[float, float]:
        """How late it would end where time is left after a partition's own models, at best.

        And how long it would take there.
        """
        model = view.model(request.model)
        ahead_rows = view.queue(request.model).rows_before(request) + request.rows
        best_ms = alone_ms = inf
        for host in model.lenders:
            slot = view.slot(host, request.model)
            whole, rest = divmod(ahead_rows, slot.batch)
            run_ms = whole * model.latency_ms(slot.batch, host.share_pct, request.shape)
            if rest:
                run_ms += model.latency_ms(rest, host.share_pct, request.shape)
            start_ms = max(now_ms, host.free_at_ms)
            start_ms += sum(
                row_ms(own, host, view) * view.queue(own.model).rows
                for own in view.queued(host)
                if not own.guest
            )
            own_ms = model.latency_ms(request.rows, host.share_pct, request.shape)
            end_ms = start_ms + run_ms + model.admission_margin_ms
            alone_ms = min(alone_ms, own_ms)
            best_ms = min(best_ms, end_ms - request.deadline_ms)
        return best_ms, alone_ms

    def _outlook(
        self, request: Request, host: PartitionView, view: View, now_ms: float, own_ms: float
    ) -> tuple[float, bool]:
        """How late this request would be at ``host``, and whether it would make no other late.

        It makes those behind it late if all that is queued, it included, ends after the last of
        their deadlines. Requests of one model and one SLO are served in order of arrival, so this
        can happen only to queues whose tail is less urgent than the request.
        """
        start_ms = total_ms = max(now_ms, host.free_at_ms)
        deadline_ms, tail_ms = request.deadline_ms, inf
        for slot in view.queued(host):
            if slot.guest:
                continue  # a guest waits for the others, not they for it
            queue = view.queue(slot.model)
            per_row_ms, last_ms = row_ms(slot, host, view), queue.tail_deadline_ms
            total_ms += queue.rows * per_row_ms
            start_ms += queue.rows_before(request) * per_row_ms
            if deadline_ms < last_ms < tail_ms:
                tail_ms = last_ms
        for slot, coming in view.coming(host):
            per_row_ms, last_ms = row_ms(slot, host, view), coming.tail_deadline_ms
            total_ms += coming.rows * per_row_ms
            start_ms += coming.rows_before(request) * per_row_ms
            if deadline_ms < last_ms < tail_ms:
                tail_ms = last_ms
        # A request that need not wait needs no margin: the execution alone is known well enough.
        margin_ms = view.model(request.model).admission_margin_ms if start_ms > now_ms else 0.0
        late_ms = start_ms + own_ms + margin_ms - deadline_ms
        if tail_ms == inf:
            return late_ms, True
        added_ms = row_ms(view.slot(host, request.model), host, view) * request.rows
        passes = added_ms <= self.lenience * (tail_ms - now_ms)
        return late_ms, passes or total_ms + added_ms <= tail_ms


def _crowded_ms(request: Request, host: PartitionView, view: View, now_ms: float) -> float:
    """How long after its deadline a request would begin at ``host`` for want of room.

    By deadline, all rows with nearer ones go first, each for its part of the room, in what the
    batches that run leave of it until they end. Or in its turn, if that is sooner: of models that
    lose requests each is served in proportion to its planned rate (``policy.fairness``), as much
    of it as the plan has ``headroom``.
    """
    work_ms = own_ms = 0.0
    for model, lanes in view.waiting_lanes():
        rows = view.queue(model).rows_before(request)
        if not rows:
            continue
        for place, slot in lanes:
            work_ms += rows * row_ms(slot, place, view) * place.room_part
            if place is host and model == request.model:
                turn_ms = 1000.0 / planned_rows_per_s(slot) / (view.plan.headroom or 1.0)
                own_ms = rows * place.parts.get(model, 1.0) * turn_ms
    ends = sorted((max(p.free_at_ms, now_ms), p.room_part) for p in view.running)
    free, at_ms = 1.0 - sum(part for _, part in ends), now_ms
    for end_ms, part in ends:
        done_ms = free * (end_ms - at_ms)
        if work_ms <= done_ms and host.room_part <= free + _ROUNDING:
            break
        work_ms, free = max(0.0, work_ms - done_ms), free + part
        at_ms = end_ms
    start_ms = min(at_ms + work_ms / free, now_ms + own_ms)
    margin_ms = view.model(request.model).admission_margin_ms if start_ms > now_ms else 0.0
    return start_ms + margin_ms - request.deadline_ms


def row_ms(slot: Slot, host: PartitionView, view: View) -> float:
    """Time one queued row of a slot's model costs ``host``: its planned part of a row."""
    name = slot.model
    model = view.model(name)
    batch = limit_rows(slot, host, model)
    return model.latency_ms(batch, host.share_pct) / batch * host.parts.get(name, 1.0)


#: After every request of the same deadline.
_LAST: Final = 1 << 62


def outlook(model: str, view: View, ready_ms: float, now_ms: float) -> ModelOutlook:
    """That of a model, in the partition where a request of one row would end first.

    Before it go the running batch, and what waits there with nearer deadlines, of each model the
    part that is planned there, in full batches; it is in its own model's last one. The weights
    come first, if they are not there before ``ready_ms``. Of a model that is a guest everywhere
    here, all that waits of a partition's own models goes before it.
    """
    asked = view.model(model)
    slo_ms = asked.demand.slo_ms
    request = Request(_LAST, model, now_ms, now_ms + slo_ms)
    best_ms = alone_ms = added_ms = inf
    for host in asked.hosts or asked.lenders:
        own_ms = asked.latency_ms(1, host.share_pct)
        end_ms = max(0.0, host.free_at_ms - now_ms)
        own = view.slot(host, model)
        per_row_ms = row_ms(own, host, view)
        end_ms += _batches_ms(view.queue(model).rows_before(request) + 1, own, host, view)
        for slot in view.queued(host):
            queue = view.queue(slot.model)
            rows = queue.rows if own.guest else queue.rows_before(request)
            if rows and not slot.guest and slot.model != model:
                end_ms += _batches_ms(rows, slot, host, view)
        if end_ms < best_ms:
            best_ms, alone_ms, added_ms = end_ms, own_ms, per_row_ms
    cold_ms = max(0.0, ready_ms - now_ms)
    if cold_ms > 0.0:
        best_ms = max(best_ms, cold_ms + alone_ms)
    waiting = view.queue(model).rows
    lent = not asked.hosts
    return ModelOutlook(best_ms, alone_ms, added_ms, slo_ms, cold_ms, waiting, lent=lent)


def _batches_ms(rows: int, slot: Slot, host: PartitionView, view: View) -> float:
    """How long a model's next rows run at one of its hosts: full batches, and the rest."""
    model = view.model(slot.model)
    batch = limit_rows(slot, host, model)
    whole, rest = divmod(ceil(rows * host.parts.get(slot.model, 1.0)), batch)
    rest_ms = model.latency_ms(rest, host.share_pct) if rest else 0.0
    return whole * model.latency_ms(batch, host.share_pct) + rest_ms
