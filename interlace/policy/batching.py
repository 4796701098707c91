"""How many rows the next batch takes, whom it leaves behind, and whether to wait for more."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from interlace.core.plan import Slot
from interlace.core.request import Request
from interlace.perf.pace import line
from interlace.policy.base import PartitionView, View

#: Of the sustaining batch: what is worth giving up heads for, and worth waiting for, where others
#: run the same model; alone nothing is worth waiting for, and the more is worth giving up the
#: larger the fixed cost. Found on Poisson arrivals (`bench.clairvoyant`), flat around the best.
_TARGET, _LEAST, _ALONE = 1.1, 1.2, 5.0
#: Sums of times that are equal on paper differ by less.
_ROUNDING_MS = 1e-6


class Sizes(NamedTuple):
    """Rows: at most ``limit``; heads are given up for ``target``; waited is for ``least``."""

    limit: int
    target: int
    least: int


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
    alone = len(partition.slots) == 1
    return max(slot.batch, view.demand(slot.model).max_batch) if alone else slot.batch


def sizes(slot: Slot, partition: PartitionView, view: View) -> Sizes:
    """Sizes after the sustaining batch: what arrives in a round that keeps up (``perf.pace``).

    One host must not wait, for what it idles is lost; of a queue that has grown beyond its time it
    serves a whole batch in time rather than a small one for the oldest. Several hosts waste less by
    running full batches in turn than by small ones at once: they wait until the sustaining batch
    is there, or until the head must begin.
    """
    limit = limit_rows(slot, partition, view)
    hosts = max(1, len(view.hosts(slot.model)))
    sustaining = view.rate_rps(slot.model) / 1000.0 * partition.round_ms / hosts
    slo_ms = view.demand(slot.model).slo_ms
    if hosts == 1:
        single_ms = view.latency_ms(slot.model, 1, partition.share_pct)
        limit_ms = view.latency_ms(slot.model, limit, partition.share_pct)
        fixed_ms, _ = line(single_ms, limit, limit_ms)
        target = sustaining * (1.0 + _ALONE * fixed_ms / slo_ms)
        return Sizes(limit, _rows(target, limit), 1)
    least = _rows(_LEAST * sustaining, limit) if len(partition.slots) == 1 else 1
    return Sizes(limit, _rows(_TARGET * sustaining, limit), least)


def given_up(model: str, target: int, partition: PartitionView, view: View, now_ms: float) -> int:
    """How many heads to drop so that a batch of ``target``, or all the rest, ends in time.

    Early drop with a target (Nexus section 6.3). Later heads have more time and fewer behind
    them, so the first that will do is found by halving. 0 if none would.
    """
    queue = view.queue(model)
    rows, head = queue.rows, queue.head
    if head is None or head.priority:
        return 0  # who has stated a priority is not given up for who has not

    def fits(place: int) -> bool:
        need = max(1, min(target, rows - place))
        run_ms = view.latency_ms(model, need, partition.share_pct, head.shape)
        return run_ms <= queue.deadline_ms(place) - now_ms - _ROUNDING_MS

    if fits(0):
        return 0
    low, high = 0, rows - 1
    if high < 1 or not fits(high):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


def _rows(wanted: float, limit: int) -> int:
    return limit if wanted >= limit else max(1, ceil(wanted - 0.5))
