"""Earliest deadline first, but long work that must begin now before what can go elsewhere."""

from __future__ import annotations

from typing import NamedTuple

from interlace.core.plan import Slot
from interlace.core.request import UNSTATED, Request
from interlace.policy.base import Dispatch, Launch, PartitionView, View
from interlace.policy.batching import adaptive_rows


class _Claim(NamedTuple):
    """A slot's head at one partition, in order of service; ``latest_ms`` is when it must begin."""

    priority: int
    deadline_ms: float
    model: str
    run_ms: float
    slot: Slot
    head: Request

    @property
    def latest_ms(self) -> float:
        return self.deadline_ms - self.run_ms


def deadline(view: View, now_ms: float) -> Dispatch:
    """Stated priority, then earliest deadline, over the models of each idle partition.

    A long execution would begin too late in that order: shorter work with a nearer deadline keeps
    passing it. So one that must begin before the first could end goes first, if the first has more
    partitions to run in. Nothing waits for company while the partition is idle: requests that
    queue up behind a running batch form the next one.
    """
    launches: list[Launch] = []
    taken: dict[str, int] = {}
    for partition in view.partitions:
        if not partition.accepting or partition.running is not None:
            continue
        claims = _claims(partition, view, taken)
        if claims:
            launch = _launch(claims, partition, view, now_ms)
            launches.append(launch)
            taken[launch.model] = taken.get(launch.model, 0) + launch.rows
    return Dispatch(tuple(launches))


def _claims(partition: PartitionView, view: View, taken: dict[str, int]) -> list[_Claim]:
    claims: list[_Claim] = []
    for slot in partition.slots:
        queue = view.queue(slot.model)
        head = queue.head
        if head is None or queue.rows <= taken.get(slot.model, 0):
            continue
        run_ms = view.latency_ms(slot.model, head.rows, partition.share_pct, head.shape)
        level = head.priority or UNSTATED
        claims.append(_Claim(level, head.deadline_ms, slot.model, run_ms, slot, head))
    return claims


def _launch(claims: list[_Claim], partition: PartitionView, view: View, now_ms: float) -> Launch:
    claims.sort(key=lambda claim: claim[:3])
    first = claims[0]
    for other in claims[1:]:
        must_begin = now_ms <= other.latest_ms < now_ms + first.run_ms
        if must_begin and _has_more_hosts(first, other, view):
            first = other
            break
    # A batch may grow as long as nobody else who waits here must begin before it ends.
    others_ms = (claim.latest_ms for claim in claims if claim is not first)
    end_ms = min([first.deadline_ms, *others_ms])
    rows = adaptive_rows(first.slot, first.head, partition, view, end_ms, now_ms)
    return Launch(partition.id, first.model, rows)


def _has_more_hosts(first: _Claim, other: _Claim, view: View) -> bool:
    """True if ``first`` can go elsewhere sooner than ``other``, which is no less urgent to people.

    Where both have the same hosts one of them is lost, and the nearer deadline goes first.
    """
    if first.priority < other.priority:
        return False
    return len(view.hosts(first.model)) > len(view.hosts(other.model))
