"""D-STACK's scheduler: deadlines first, spread over the session, and a fair use of what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from interlace.core.request import Request
from interlace.policy.decision import Dispatch, Launch
from interlace.policy.view import PartitionView, View, available_partitions, start_ms


class _Candidate(NamedTuple):
    """A model that can be given a batch: what waits, when it is due, how long its batch takes.

    ``full_ms`` is what its planned batch would take; ``start_ms`` when a batch would begin.
    """

    deadline_ms: float
    due_ms: float
    partition: PartitionView
    model: str
    rows: int
    run_ms: float
    full_ms: float
    head: Request | None
    start_ms: float

    @property
    def due(self) -> bool:
        return self.due_ms <= self.start_ms


class _ShareUse(NamedTuple):
    """Share that a model takes in a partition from one time to another."""

    from_ms: float
    until_ms: float
    share_pct: int
    model: str
    partition: str


@dataclass(frozen=True, slots=True)
class SpatioTemporal:
    """Spatio-temporal scheduling of sections 6.1.1 and, with ``fill``, 6.1.2.

    Every model runs at least once in its SLO, with its planned batch. It is due one SLO after it
    last began: its runs may be no further apart. It is due sooner if its most urgent request could
    wait no longer with a full batch. Models that are due start in the order of deadlines, as soon
    as their share is free. The running shares never exceed 100 %.

    With ``fill`` a model that is not running and not due may begin too. Models that ran least in
    the last ``sessions`` sessions come first (the scoreboard; a batch is a run). Each takes the
    largest batch that leaves every model that is due, or will be, its share in time. The paper
    plans a session in advance; here the plan is remade at every arrival and end, and reserves the
    runs that fall due later.

    A model never runs below the share of its partition, the knee. In the paper it can "when
    necessary", but the paper does not say when, and shares of live partitions are fixed. A model
    that lacks room gets a smaller batch (halves are tried) or waits.
    """

    fill: bool = True
    sessions: int = 10

    def __call__(self, view: View, now_ms: float) -> Dispatch:
        jobs = list(_jobs(view, now_ms))
        uses = [
            _ShareUse(now_ms, max(p.free_at_ms, now_ms), p.share_pct, p.running.model, p.id)
            for p in view.partitions
            if p.running is not None
        ]
        due = sorted((j for j in jobs if j.due and j.head is not None), key=_urgency)
        launches, late = _begin(due, uses)
        if self.fill:
            begun = {launch.partition for launch in launches}
            rest = [job for job in _free(jobs, uses) if job.partition.id not in begun]
            if rest:
                coming = [*_reserved(late, uses, now_ms), *_coming(jobs)]
                launches += self._filled(rest, uses, coming, view, now_ms)
        next_ms = min((job.due_ms for job in jobs if job.due_ms > now_ms), default=None)
        return Dispatch(tuple(launches), next_ms)

    def _filled(
        self,
        rest: list[_Candidate],
        uses: list[_ShareUse],
        coming: Sequence[_ShareUse],
        view: View,
        now_ms: float,
    ) -> list[Launch]:
        since_ms = now_ms - self.sessions * (view.plan.session_ms or 0.0)
        launches: list[Launch] = []
        for job in sorted(
            rest, key=lambda j: (view.history.runs_since(j.model, since_ms), _urgency(j))
        ):
            if any(launch.partition == job.partition.id for launch in launches):
                continue
            rows = _rows_that_fit(job, uses, coming, view)
            if rows:
                _use(job, view.model(job.model).latency_ms(rows, job.partition.share_pct), uses)
                launches.append(Launch(job.partition.id, job.model, rows))
        return launches


def _jobs(view: View, now_ms: float) -> Iterator[_Candidate]:
    for partition in available_partitions(view, now_ms):
        at_ms = start_ms(partition, now_ms)
        for slot in partition.slots:
            queue = view.queue(slot.model)
            head = queue.head
            rows = queue.batch_rows(max(slot.batch, head.rows)) if head else slot.batch
            run_ms = view.model(slot.model).latency_ms(rows, partition.share_pct)
            full_ms = view.model(slot.model).latency_ms(max(slot.batch, rows), partition.share_pct)
            slo_ms = view.model(slot.model).demand.slo_ms
            due_ms = max(partition.last_start_ms(slot.model) + slo_ms, 0.0)
            deadline_ms = now_ms + slo_ms
            if head is not None:
                deadline_ms = head.deadline_ms
                due_ms = min(due_ms, head.deadline_ms - full_ms)  # it may have filled by then
            yield _Candidate(
                deadline_ms, due_ms, partition, slot.model, rows, run_ms, full_ms, head, at_ms
            )


def _urgency(job: _Candidate) -> tuple[float, float, str]:
    return job.deadline_ms, job.due_ms, job.partition.id


def _taken_pct(job: _Candidate, uses: Sequence[_ShareUse]) -> int:
    """What others take; a partition that runs has its own share already."""
    return sum(use.share_pct for use in uses if use.partition != job.partition.id)


def _use(job: _Candidate, run_ms: float, uses: list[_ShareUse]) -> None:
    """Enter a batch of a job, behind what its partition runs."""
    share_pct, name = job.partition.share_pct, job.partition.id
    from_ms = min((use.from_ms for use in uses if use.partition == name), default=job.start_ms)
    uses[:] = [use for use in uses if use.partition != name]
    uses.append(_ShareUse(from_ms, job.start_ms + run_ms, share_pct, job.model, name))


def _begin(
    due: Sequence[_Candidate], uses: list[_ShareUse]
) -> tuple[list[Launch], list[_Candidate]]:
    """Due models whose share is free start, most urgent first; the others are returned too."""
    launches: list[Launch] = []
    late: list[_Candidate] = []
    used: set[str] = set()
    for job in due:
        if job.partition.id in used:
            continue
        if _taken_pct(job, uses) + job.partition.share_pct > 100:
            late.append(job)
            continue
        used.add(job.partition.id)
        _use(job, job.run_ms, uses)
        launches.append(Launch(job.partition.id, job.model, job.rows))
    return launches, late


def _free(jobs: Sequence[_Candidate], uses: Sequence[_ShareUse]) -> Iterator[_Candidate]:
    """Those not yet due that have something to run and whose share is free now."""
    for job in jobs:
        fits = _taken_pct(job, uses) + job.partition.share_pct <= 100
        if not job.due and job.head is not None and fits:
            yield job


def _reserved(
    late: Sequence[_Candidate], uses: Sequence[_ShareUse], now_ms: float
) -> Iterator[_ShareUse]:
    """When the shares of models that are due but have to wait become free."""
    ends = sorted((use.until_ms, use.share_pct) for use in uses)
    for job in late:
        free_pct = 100 - sum(use.share_pct for use in uses)
        for until_ms, share_pct in ends:
            free_pct += share_pct
            if free_pct >= job.partition.share_pct:
                free_ms, place = max(until_ms, now_ms), job.partition
                end_ms = free_ms + job.run_ms
                yield _ShareUse(free_ms, end_ms, place.share_pct, job.model, place.id)
                break


def _coming(jobs: Sequence[_Candidate]) -> Iterator[_ShareUse]:
    """Runs that fall due later, of models that have something to run.

    Only the next run of each. To reserve runs of running models too, and one in every SLO after
    that, leaves shares idle that a batch could use. More requests are late then: 7 % in place of
    2 % on D-STACK's C-4.
    """
    for job in jobs:
        if not job.due and job.head is not None:
            until_ms, share_pct = job.due_ms + job.full_ms, job.partition.share_pct
            yield _ShareUse(job.due_ms, until_ms, share_pct, job.model, job.partition.id)


def _rows_that_fit(
    job: _Candidate, uses: Sequence[_ShareUse], coming: Sequence[_ShareUse], view: View
) -> int:
    """The largest of the batch, its half, its quarter, ... that delays no other; 0 if none."""
    others = [use for use in coming if use.model != job.model]
    running = [use for use in uses if use.partition != job.partition.id]
    share_pct, rows = job.partition.share_pct, job.rows
    while rows >= 1:
        until_ms = job.start_ms + view.model(job.model).latency_ms(rows, share_pct)
        asked = _ShareUse(job.start_ms, until_ms, share_pct, job.model, job.partition.id)
        if _fits(asked, running, others):
            return rows
        rows //= 2
    return 0


def _fits(asked: _ShareUse, uses: Sequence[_ShareUse], coming: Sequence[_ShareUse]) -> bool:
    """True if the shares add up to at most 100 % whenever a batch begins while ``asked`` runs."""
    every = [*uses, *coming]
    starts = [asked.from_ms, *(use.from_ms for use in coming if use.from_ms < asked.until_ms)]
    return all(
        asked.share_pct + sum(use.share_pct for use in every if use.from_ms <= at_ms < use.until_ms)
        <= 100
        for at_ms in starts
        if at_ms >= asked.from_ms
    )
