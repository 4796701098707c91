"""Batches of many sizes side by side: E2bird's N-Ebird and E-Ebird (section 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.plan import ElasticBatching
from interlace.policy.decision import Dispatch, Launch
from interlace.policy.view import PartitionView, View

#: Workers that are kept for the lowest loads (section 7.3.2).
_LEAST: Final = (2, 1)


@dataclass(frozen=True, slots=True)
class _WorkerGroup:
    """One model's workers on one accelerator: batch sizes, and which are idle, largest first."""

    model: str
    elastic: ElasticBatching
    idle: Sequence[tuple[int, PartitionView]]
    alive_rows: int  #: CurInf


def naive_elastic(view: View, now_ms: float) -> Dispatch:
    """N-Ebird, Algorithm 1: up to MaxInf rows in flight, each time in the largest idle worker.

    The paper leaves open what happens where several models have workers on one accelerator. Its
    hypothesis of equal sharing is kept: a row of a model takes 1 / MaxInf of the accelerator, and
    the parts in flight add up to at most one. The model whose head has waited longest chooses
    first, and those behind it do not take what it lacks.
    """
    return _dispatch(view, now_ms, guided=False)


def elastic(view: View, now_ms: float) -> Dispatch:
    """E-Ebird, Algorithm 2: the same among the workers that are best for the load of the moment.

    The load is all that is in the pool, waiting or running. It has the configuration of the largest
    profiled load not above it; below the smallest, the workers of one and two rows (7.3.2). Where
    none of these is small enough, all workers may help: for what is left before the ring's end,
    and when nothing else runs.
    """
    return _dispatch(view, now_ms, guided=True)


def _dispatch(view: View, now_ms: float, guided: bool) -> Dispatch:
    launches: list[Launch] = []
    begun: set[str] = set()  # where partitions cannot overlap, engines share their workers
    free_part = 1.0
    engines = list(_engines(view, now_ms))
    for one in engines:
        free_part -= one.alive_rows / one.elastic.max_rows
    for one in sorted(engines, key=lambda one: _waits_since(one.model, view)):
        queue = view.queue(one.model)
        room_rows = int(free_part * one.elastic.max_rows + 1e-9)
        wanted_rows = min(queue.rows, room_rows)
        idle = _configured(one, view.waiting_rows(one.model)) if guided else one.idle
        idle = [(size, p) for size, p in idle if p.id not in begun]
        chosen = chosen_workers(wanted_rows, [size for size, _ in idle])
        if not chosen and (queue.complete or not one.alive_rows):
            idle = [(size, p) for size, p in one.idle if p.id not in begun]
            chosen = chosen_workers(wanted_rows, [size for size, _ in idle])
        left = list(idle)
        for size in chosen:
            place = next(p for p, (batch, _) in enumerate(left) if batch == size)
            worker = left.pop(place)[1].id
            begun.add(worker)
            launches.append(Launch(worker, one.model, size))
        free_part -= sum(chosen) / one.elastic.max_rows
        if queue.rows and room_rows < 1:
            break
    return Dispatch(tuple(launches))


def chosen_workers(rows: int, sizes: Iterable[int]) -> list[int]:
    """Algorithms 1 and 2, lines 7 to 16: sizes of the workers that start, of idle ``sizes``.

    The idle workers are gone through in descending order; one that is no larger than the rows
    left takes as many of them.
    """
    chosen: list[int] = []
    for size in sorted(sizes, reverse=True):
        if 0 < size <= rows:
            chosen.append(size)
            rows -= size
    return chosen


def _engines(view: View, now_ms: float) -> Iterable[_WorkerGroup]:
    workers: dict[str, list[tuple[int, PartitionView]]] = {}
    for partition in view.partitions:
        for slot in partition.slots:
            workers.setdefault(slot.model, []).append((slot.batch, partition))
    for model, there in workers.items():
        idle = [(size, p) for size, p in there if p.takes(now_ms)]
        # What is about to end has made room by the time at which what follows it begins.
        alive = sum(
            p.running.rows
            for _, p in there
            if p.running is not None and p.running.model == model and not p.takes(now_ms)
        )
        known = view.plan.elastic.get(model) or ElasticBatching(sum(size for size, _ in there))
        idle.sort(key=lambda pair: (-pair[0], pair[1].id))
        yield _WorkerGroup(model, known, idle, alive)


def _waits_since(model: str, view: View) -> float:
    head = view.queue(model).head
    return head.arrived_ms if head is not None else float("inf")


def _configured(one: _WorkerGroup, waiting_rows: int) -> Sequence[tuple[int, PartitionView]]:
    """The idle workers that the configuration for this load keeps alive."""
    load = waiting_rows + one.alive_rows
    left = Counter(alive_sizes(one.elastic.best, load, [size for size, _ in one.idle]))
    kept: list[tuple[int, PartitionView]] = []
    for size, worker in one.idle:
        if left[size] > 0:
            left[size] -= 1
            kept.append((size, worker))
    return kept


def alive_sizes(
    best: Mapping[int, Sequence[int]], load: int, there: Sequence[int]
) -> Sequence[int]:
    """Sizes of the workers that serve a load; all that are ``there`` if nothing was profiled."""
    if not best:
        return there
    below = [total for total in best if total <= load]
    return best[max(below)] if below else _LEAST
