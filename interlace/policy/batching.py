"""How many rows the next batch takes, which requests it leaves behind, and whether to wait."""

from __future__ import annotations

from math import ceil
from typing import Final, NamedTuple

from interlace.core.plan import Slot
from interlace.core.request import Request
from interlace.policy.view import ModelView, PartitionView, View

#: Of the sustaining batch: a full one, where others run the same model. Found on Poisson arrivals
#: (results/log.md), flat around the best.
_FULL: Final = 1.2
#: Sums of times that are equal on paper differ by less.
_ROUNDING_MS: Final = 1e-6
#: Requests: more than any queue holds.
_MORE_THAN_ANY: Final = 1 << 60


class BatchSizes(NamedTuple):
    """Rows: at most ``limit``; ``least`` is waited for; the next batch takes to ``following``."""

    limit: int
    least: int
    following: int


def rows_in_time(
    rows: int, model: ModelView, head: Request, share_pct: int, budget_ms: float
) -> int:
    """The largest batch of at most ``rows`` within the budget, and at least the head's rows."""
    if rows <= head.rows:
        return head.rows
    shape = head.shape
    budget_ms -= _ROUNDING_MS
    if model.latency_ms(rows, share_pct, shape) <= budget_ms:
        return rows
    low, high = head.rows, rows
    while high - low > 1:
        middle = (low + high) // 2
        if model.latency_ms(middle, share_pct, shape) <= budget_ms:
            low = middle
        else:
            high = middle
    return low


def limit_rows(slot: Slot, partition: PartitionView, model: ModelView) -> int:
    """The largest batch of a slot: as planned where models take turns, else the model's largest.

    A planned batch leaves time for a queue and for other models; alone in its partition a model may
    use what is left of that time. A guest may not.
    """
    alone = partition.own_turns == 1 and not slot.guest
    return max(slot.batch, model.demand.max_batch) if alone else slot.batch


def sizes(slot: Slot, partition: PartitionView, view: View) -> BatchSizes:
    """Sizes after the sustaining batch: what arrives in a round of ``engine.turns``.

    A single host never waits, since idle time is lost, and takes all that is queued. Several that
    are alike waste less by running full batches in turn than small ones at once: they wait until a
    full batch is queued, or until the head must begin. Where one is faster, or has other models to
    run, nobody waits: what the one leaves idle the other cannot always make good.
    """
    model = view.model(slot.model)
    limit = limit_rows(slot, partition, model)
    if len(model.hosts) <= 1:
        return BatchSizes(limit, 1, limit)
    full = _rows(_FULL * partition.sustaining_rows.get(slot.model, 0.0), limit)
    return BatchSizes(limit, full if model.alike else 1, full)


def kept_rows(
    slot: Slot, wanted: BatchSizes, partition: PartitionView, view: View, now_ms: float
) -> int:
    """The largest batch that may start now: as planned, where that loses nothing.

    Rows behind a planned batch, or a full one if it is larger, are left to the host that is free
    next. They are left only if the queue ends in time at the rate of its arrivals, and if the next
    batch loses no request. In a burst the whole queue is taken.
    """
    queue, model, share_pct = view.queue(slot.model), view.model(slot.model), partition.share_pct
    head, rows = queue.head, max(slot.batch, wanted.following)
    left = queue.rows - rows
    if left <= 0 or rows >= wanted.limit or head is None or head.priority or head.rows > 1:
        return wanted.limit
    run_ms = model.latency_ms(rows, share_pct, head.shape)
    rest_ms = queue.tail_deadline_ms - now_ms - run_ms
    if left > rest_ms * view.rows_per_s(slot.model) / 1000.0:
        return wanted.limit
    lost = _lost_next(slot, rows, rows, partition, view, now_ms, run_ms)
    return wanted.limit if lost else rows


def given_up(
    slot: Slot, limit: int, following: int, partition: PartitionView, view: View, now_ms: float
) -> int:
    """How many heads to drop before a batch of at most ``limit``, so that the fewest are lost.

    Without its oldest requests a batch has more time and takes more rows; but those that a smaller
    batch leaves behind are not lost yet, since the next one may take them. So the sum is minimised
    of what is dropped now and what the next batch, of up to ``following`` rows, would have to drop.
    For one host this has no parameter to fit, and on Poisson arrivals it is as good as value
    iteration (results/log.md). The search ends when more are dropped than the best choice
    loses in all.
    """
    queue, share_pct = view.queue(slot.model), partition.share_pct
    rows, head, model = queue.rows, queue.head, view.model(slot.model)
    if head is None or head.priority or head.rows > 1:
        return 0  # a request with a stated priority is not given up for one without
    best, fewest, dropped = 0, _MORE_THAN_ANY, 0
    while dropped < min(rows, fewest):
        most = min(limit, rows - dropped)
        budget_ms = queue.deadline_ms(dropped) - now_ms
        batch = rows_in_time(most, model, head, share_pct, budget_ms)
        run_ms = model.latency_ms(batch, share_pct, head.shape)
        if run_ms <= budget_ms - _ROUNDING_MS:
            if batch == most and not dropped:
                return 0  # by far the usual case
            taken = dropped + batch
            lost = dropped + _lost_next(slot, following, taken, partition, view, now_ms, run_ms)
            if lost < fewest:
                best, fewest = dropped, lost
            if batch == most:
                break
        dropped += 1
    return best


def _lost_next(
    slot: Slot,
    following: int,
    taken: int,
    partition: PartitionView,
    view: View,
    now_ms: float,
    run_ms: float,
) -> int:
    """How many that are queued now the next batch must drop, to take ``following`` or all there is.

    It starts when this one ends, or when another host of the model is free, with what arrives until
    then at the measured rate. By bisection: later heads have more time, and fewer behind them.
    """
    queue, model = view.queue(slot.model), view.model(slot.model)
    start_ms = now_ms + run_ms
    for host in model.hosts:
        if host.id != partition.id:
            start_ms = min(start_ms, max(now_ms, host.free_at_ms))
    left, shape = queue.rows - taken, queue.head.shape if queue.head else None
    new = view.rows_per_s(slot.model) / 1000.0 * (start_ms - now_ms)
    low, high = 0, left
    while low < high:
        middle = (low + high) // 2
        need = _rows(left - middle + new, following)
        end_ms = start_ms + model.latency_ms(need, partition.share_pct, shape)
        if end_ms <= queue.deadline_ms(taken + middle) - _ROUNDING_MS:
            high = middle
        else:
            low = middle + 1
    return low


def _rows(wanted: float, limit: int) -> int:
    return limit if wanted >= limit else max(1, ceil(wanted - 0.5))
