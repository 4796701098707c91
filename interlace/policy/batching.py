"""How many rows the next batch takes, whom it leaves behind, and whether to wait for more."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from interlace.core.plan import Slot
from interlace.core.request import Request
from interlace.policy.base import PartitionView, View

#: Of the sustaining batch: a full one, where others run the same model. Found on Poisson arrivals
#: (`bench.clairvoyant`), flat around the best.
_FULL = 1.2
#: Sums of times that are equal on paper differ by less.
_ROUNDING_MS = 1e-6


class BatchSizes(NamedTuple):
    """Rows: at most ``limit``; ``least`` is waited for; the next batch takes to ``following``."""

    limit: int
    least: int
    following: int


def rows_in_time(
    rows: int, model: str, head: Request, partition: PartitionView, view: View, budget_ms: float
) -> int:
    """The largest batch of at most ``rows`` within the budget, and at least the head's rows."""
    share_pct, shape = partition.share_pct, head.shape
    budget_ms -= _ROUNDING_MS
    if view.latency_ms(model, rows, share_pct, shape) <= budget_ms:
        return max(rows, head.rows)
    low, high = head.rows, max(rows, head.rows)
    while high - low > 1:
        middle = (low + high) // 2
        if view.latency_ms(model, middle, share_pct, shape) <= budget_ms:
            low = middle
        else:
            high = middle
    return low


def limit_rows(slot: Slot, partition: PartitionView, view: View) -> int:
    """The largest batch of a slot: its own where others take turns, the model's where it is alone.

    A planned batch leaves time for a queue and for others; when the moment leaves more, more may
    run.
    """
    alone = own_turns(partition) == 1
    return max(slot.batch, view.demand(slot.model).max_batch) if alone else slot.batch


def own_turns(partition: PartitionView) -> int:
    """Models that have a turn here, guests left out."""
    return sum(not slot.guest for slot in partition.slots)


def sizes(slot: Slot, partition: PartitionView, view: View) -> BatchSizes:
    """Sizes after the sustaining batch: what arrives in a round that keeps up (``perf.pace``).

    One host must not wait, for what it idles is lost, and takes all that is there. Several hosts
    waste less by running full batches in turn than by small ones at once: they wait until a full
    one is there, or until the head must begin.
    """
    limit = limit_rows(slot, partition, view)
    hosts = max(1, len(view.hosts(slot.model)))
    if hosts == 1:
        return BatchSizes(limit, 1, limit)
    sustaining = view.rows_per_s(slot.model) / 1000.0 * partition.round_ms / hosts
    full = _rows(_FULL * sustaining, limit)
    return BatchSizes(limit, full if own_turns(partition) == 1 else 1, full)


def given_up(
    model: str, limit: int, following: int, partition: PartitionView, view: View, now_ms: float
) -> int:
    """How many heads to drop before a batch of at most ``limit``, so that the fewest are lost.

    Without its oldest a batch has more time and takes more; but whom a smaller one leaves behind
    is not lost yet, for the next may take them. So the sum is made least of those dropped now and
    of those whom the next batch, of up to ``following``, would have to drop. For one host there is
    nothing to fit in this, and on Poisson arrivals it is as good as value iteration
    (`bench.clairvoyant`). More drops than another choice costs in all need not be looked at.
    """
    queue = view.queue(model)
    rows, head = queue.rows, queue.head
    if head is None or head.priority or head.rows > 1:
        return 0  # who has stated a priority is not given up for who has not
    best, fewest, dropped = 0, float("inf"), 0
    while dropped < min(rows, fewest):
        most = min(limit, rows - dropped)
        budget_ms = queue.deadline_ms(dropped) - now_ms
        batch = rows_in_time(most, model, head, partition, view, budget_ms)
        run_ms = view.latency_ms(model, batch, partition.share_pct, head.shape)
        if run_ms <= budget_ms - _ROUNDING_MS:
            if batch == most and not dropped:
                return 0  # by far the usual case
            taken = dropped + batch
            lost = dropped + _lost_next(model, following, taken, partition, view, run_ms, now_ms)
            if lost < fewest:
                best, fewest = dropped, lost
            if batch == most:
                break
        dropped += 1
    return best


def _lost_next(
    model: str,
    following: int,
    taken: int,
    partition: PartitionView,
    view: View,
    run_ms: float,
    now_ms: float,
) -> int:
    """How many that are queued now the next batch must drop, to take ``following`` or all there is.

    It starts when this one ends, or when another host of the model is free, with those who arrive
    until then at the rate seen. Found by halving: later heads have more time, and fewer behind.
    """
    queue = view.queue(model)
    start_ms = now_ms + run_ms
    for host in view.hosts(model):
        if host.id != partition.id:
            start_ms = min(start_ms, max(now_ms, host.free_at_ms))
    left, shape = queue.rows - taken, queue.head.shape if queue.head else None
    new = view.rows_per_s(model) / 1000.0 * (start_ms - now_ms)
    low, high = 0, left
    while low < high:
        middle = (low + high) // 2
        need = _rows(left - middle + new, following)
        end_ms = start_ms + view.latency_ms(model, need, partition.share_pct, shape)
        if end_ms <= queue.deadline_ms(taken + middle) - _ROUNDING_MS:
            high = middle
        else:
            low = middle + 1
    return low


def _rows(wanted: float, limit: int) -> int:
    return limit if wanted >= limit else max(1, ceil(wanted - 0.5))
