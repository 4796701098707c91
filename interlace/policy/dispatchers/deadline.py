"""Earliest deadline first, but long work that must begin now before what can go elsewhere."""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

from interlace.core.plan import Slot
from interlace.core.request import UNSTATED_PRIORITY, Request
from interlace.policy.batching import BatchSizes, given_up, kept_rows, rows_in_time, sizes
from interlace.policy.decision import Dispatch, Drop, Launch
from interlace.policy.fairness import due, owed_ms
from interlace.policy.view import ModelView, PartitionView, View, available_partitions, start_ms

#: Sums of times that are equal on paper differ by less.
_ROUNDING_MS: Final = 1e-6


class _Claim(NamedTuple):
    """A slot's head at one partition, in order of service.

    ``end_ms`` is its deadline, or now if a batch is due; ``latest_ms`` is when it must begin.
    """

    priority: int
    end_ms: float
    model: str
    run_ms: float
    slot: Slot
    head: Request
    sizes: BatchSizes | None  #: where they were looked at already

    @property
    def latest_ms(self) -> float:
        return self.end_ms - self.run_ms


def earliest_deadline(view: View, now_ms: float) -> Dispatch:
    """Stated priority, then earliest deadline, over the models of each partition.

    A long execution would begin too late in that order: shorter work with a nearer deadline keeps
    passing it. So one that must begin before the first could end goes first, if the first has more
    partitions to run in. A model that has partitions of its own waits for a batch that sustains
    its rate, as long as its head can wait; everything else starts at once. Where a queue has more
    than can be served in time, as many of the oldest are dropped as makes the fewest lost. Of
    models that lose requests, one that is owed a batch goes first, and one without an SLO when it
    is due (``policy.fairness``).
    """
    launches: list[Launch] = []
    drops: list[Drop] = []
    taken: dict[str, int] = {}
    wake_ms = inf
    for partition in available_partitions(view, now_ms):
        at_ms = start_ms(partition, now_ms)
        claims, patient_ms = _claims(partition, view, taken, at_ms)
        wake_ms = min(wake_ms, patient_ms)
        if not claims and patient_ms == inf:
            lent = _lent(partition, view, taken, at_ms)
            if lent is not None:
                launches.append(lent)
                taken[lent.model] = taken.get(lent.model, 0) + lent.rows
        found = _launch(claims, partition, view, taken, at_ms) if claims else None
        if found is not None:
            launch, dropped = found
            launches.append(launch)
            if dropped:
                drops.append(Drop(launch.model, dropped))
            taken[launch.model] = taken.get(launch.model, 0) + launch.rows + dropped
    return Dispatch(tuple(launches), wake_ms if wake_ms < inf else None, tuple(drops))


def _claims(
    partition: PartitionView, view: View, taken: dict[str, int], now_ms: float
) -> tuple[list[_Claim], float]:
    """What may start here now, and when the first of those that wait for more rows must."""
    claims: list[_Claim] = []
    wake_ms = inf
    alone = partition.own_turns == 1  # with others it starts at once
    for slot in view.queued(partition):
        if slot.guest:
            continue
        queue = view.queue(slot.model)
        head, left = queue.head, queue.rows - taken.get(slot.model, 0)
        if head is None or left <= 0:
            continue
        model = view.model(slot.model)
        wanted = sizes(slot, partition, view) if alone else None
        least = wanted.least if wanted is not None else 1
        latest_ms = _latest_ms(model, head, left, least, partition.share_pct)
        if now_ms < latest_ms:
            wake_ms = min(wake_ms, latest_ms)
            continue
        run_ms = model.latency_ms(head.rows, partition.share_pct, head.shape)
        level = head.priority or UNSTATED_PRIORITY
        end_ms = now_ms if due(slot, model, head, partition, now_ms) else head.deadline_ms
        claims.append(_Claim(level, end_ms, slot.model, run_ms, slot, head, wanted))
    return claims, wake_ms


def _lent(
    partition: PartitionView, view: View, taken: dict[str, int], now_ms: float
) -> Launch | None:
    """The most urgent guest whose own partitions are all busy, in a batch short enough here."""
    best: tuple[float, Launch] | None = None
    for slot in view.queued(partition):
        queue = view.queue(slot.model)
        head, left = queue.head, queue.rows - taken.get(slot.model, 0)
        if not slot.guest or head is None or left <= 0:
            continue
        model = view.model(slot.model)
        if any(host.takes(now_ms) for host in model.hosts):
            continue
        rows = queue.batch_rows(max(slot.batch, head.rows))
        budget_ms = head.deadline_ms - now_ms
        rows = rows_in_time(min(rows, left), model, head, partition.share_pct, budget_ms)
        run_ms = model.latency_ms(rows, partition.share_pct, head.shape)
        short = rows <= slot.batch and run_ms <= budget_ms
        if short and (best is None or head.deadline_ms < best[0]):
            best = head.deadline_ms, Launch(partition.id, slot.model, rows)
    return best[1] if best else None


def _latest_ms(model: ModelView, head: Request, rows: int, least: int, share_pct: int) -> float:
    """Until when a queue may wait for more rows; the past if it has enough."""
    if rows >= least:
        return -inf
    run_ms = model.latency_ms(rows + 1, share_pct, head.shape)
    due_ms = head.deadline_ms
    if head.part is None:  # it may have more time than its model promises
        due_ms = min(due_ms, head.arrived_ms + model.demand.slo_ms)
    return due_ms - run_ms - model.admission_margin_ms


def _launch(
    claims: list[_Claim], partition: PartitionView, view: View, taken: dict[str, int], now_ms: float
) -> tuple[Launch, int] | None:
    """The batch that starts, and how many of its model's oldest are given up for it.

    None of a model whose first would be late here: a faster partition may be free in time.
    """
    chosen = _chosen(claims, view, now_ms)
    owed = _lagging(chosen, claims, partition) if len(claims) > 1 else None
    first, others_ms, few_ms = owed or chosen, inf, inf
    if owed is None:
        # A batch may grow as long as no other that waits here must begin before it ends. As planned
        # it may be if only those must that have a whole batch waiting: they are pressed by their
        # own load, and small batches of all would serve less.
        for other in claims:
            if other is not first:
                others_ms = min(others_ms, other.latest_ms)
                if view.queue(other.model).rows < other.slot.batch:
                    few_ms = min(few_ms, other.latest_ms)
    queue = view.queue(first.model)
    wanted = first.sizes or sizes(first.slot, partition, view)
    rows = kept_rows(first.slot, wanted, partition, view, now_ms)
    dropped, limit = 0, max(rows, first.head.rows)
    if not taken.get(first.model):
        dropped = given_up(first.slot, limit, wanted.following, partition, view, now_ms)
    most = queue.batch_rows(limit) if not dropped else min(limit, queue.rows - dropped)
    end_ms = queue.deadline_ms(dropped)
    model, share_pct = view.model(first.model), partition.share_pct
    rows = rows_in_time(most, model, first.head, share_pct, min(end_ms, others_ms) - now_ms)
    planned = min(most, first.slot.batch)
    if rows < planned and others_ms < few_ms:
        budget_ms = min(end_ms, few_ms) - now_ms
        rows = max(rows, rows_in_time(planned, model, first.head, share_pct, budget_ms))
    run_ms = model.latency_ms(rows, share_pct, first.head.shape)
    if now_ms + run_ms > end_ms + _ROUNDING_MS:
        others = [claim for claim in claims if claim is not first]
        return _launch(others, partition, view, taken, now_ms) if others else None
    return Launch(partition.id, first.model, rows), dropped


def _chosen(claims: list[_Claim], view: View, now_ms: float) -> _Claim:
    """The claim that is next by deadline; sorts the claims in that order.

    A later stage of an app goes before a first one that can wait for it.
    """
    claims.sort(key=lambda claim: claim[:3])
    first = claims[0]
    for other in claims[1:]:
        must_begin = now_ms <= other.latest_ms < now_ms + first.run_ms
        if must_begin and _has_more_hosts(first, other, view):
            return other
    part = first.head.part
    if part is None or part.begun:
        return first
    later = (one for one in claims if one.priority == first.priority and _follows(one, part.app))
    return next((one for one in later if now_ms + one.run_ms <= first.latest_ms), first)


def _follows(claim: _Claim, app: str) -> bool:
    """Whether it is of a later stage of that app: work was done that would be lost."""
    part = claim.head.part
    return part is not None and part.begun and part.app == app


def _lagging(chosen: _Claim, claims: list[_Claim], partition: PartitionView) -> _Claim | None:
    """The claim furthest behind the chosen one, if it is so far behind that it is owed a batch."""
    lags_ms = partition.lags_ms
    if chosen.model not in lags_ms:
        return None
    ahead_ms = lags_ms[chosen.model]
    owed = [
        claim
        for claim in claims
        if claim.priority == chosen.priority
        and lags_ms.get(claim.model, 0.0) - ahead_ms >= owed_ms(claim.slot)
    ]
    return max(owed, key=lambda claim: lags_ms[claim.model], default=None)


def _has_more_hosts(first: _Claim, other: _Claim, view: View) -> bool:
    """True if ``first`` has more partitions to go to than ``other``, of no lower stated priority.

    Where both have the same hosts one of them is lost, and the nearer deadline goes first.
    """
    if first.priority < other.priority:
        return False
    return len(view.model(first.model).hosts) > len(view.model(other.model).hosts)
