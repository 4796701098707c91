"""One partition as our dispatcher and admission run it, compiled: hours of arrivals in a second.

What the engine does with one partition that is busy with known latencies, and nothing else of it:
`policy.admission.DeadlineAdmission`, `policy.dispatchers.deadline` and `policy.batching` for
requests of one row, without faults, stated priorities or fairness. `tests/bench/test_promise.py`
holds it to the engine, request for request.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from interlace.sim.arrivals import merge_arrivals
from interlace.sim.workload.renewal import Gamma

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDING_MS: Final = 1e-6
_NEVER: Final = 1e300
#: Parts of the SLO: the least admission margin, what a drop adds and an answer in time takes away.
_MARGIN: Final = 0.02
_DROP_STEP: Final = 0.002
_NARROWING: Final = _DROP_STEP / 20.0
_MOST_MARGIN: Final = 0.8
_LENIENCE: Final = 0.02
_MOST: Final = 1 << 60


class Hosted(NamedTuple):
    """The models of a partition: L(0) to L(largest) of each, SLOs, and their largest batches."""

    latency_ms: Floats  #: models x (largest + 1)
    slo_ms: Floats
    limit: Ints


def kept(
    hosted: Hosted, rows_per_s: Floats, cv: Floats, seconds: float = 20.0, seed: int = 0
) -> Floats:
    """The part of each model's requests that end in time; 1 where none were sent."""
    rates = zip(rows_per_s.tolist(), cv.tolist(), strict=True)
    workloads = {str(index): Gamma(rate, one) for index, (rate, one) in enumerate(rates)}
    arrivals = merge_arrivals(workloads, seconds, seed)
    which = arrivals.which.astype(np.int64)
    in_time = played(arrivals.times_ms, which, *hosted, rows_per_s / 1000.0)
    sent = np.bincount(which, minlength=len(rows_per_s))
    return np.where(sent > 0, in_time / np.maximum(sent, 1), 1.0)


@njit(cache=True, error_model="numpy")
def played(
    times: Floats, which: Ints, latency: Floats, slo: Floats, limit: Ints, rate: Floats
) -> Any:
    """Requests of each model that end in time; ``rate`` in rows per ms is what the engine knows."""
    models, count, now, free = len(slo), len(times), 0.0, 0.0
    queue, row = np.empty((models, count)), np.empty(models)
    for model in range(models):
        row[model] = latency[model, limit[model]] / limit[model]
    head, tail = np.zeros(models, np.int64), np.zeros(models, np.int64)
    in_time, upcoming, waiting = np.zeros(models, np.int64), 0, 0
    margin = _MARGIN * slo
    running, met = 0, 0  # answers in time, of that model, when its batch ends
    while True:
        while upcoming < count and (times[upcoming] < free or waiting == 0):
            now, model = times[upcoming], which[upcoming]
            upcoming += 1
            if now >= free:
                _narrow(margin, slo, running, met)
                met = 0
            if _admitted(model, now, free, queue, head, tail, latency, slo, row, margin[model]):
                queue[model, tail[model]] = now
                tail[model] += 1
                waiting += 1
        if waiting == 0:
            return in_time
        now = max(now, free)
        _narrow(margin, slo, running, met)
        met = 0
        for model in range(models):
            while tail[model] > head[model] and (
                queue[model, head[model]] + slo[model] - now < latency[model, 1] - _ROUNDING_MS
            ):
                _widen(margin, slo, model, 1)
                head[model] += 1
                waiting -= 1
        if waiting == 0:
            continue
        model, end, few_end = _first(queue, head, tail, latency, slo, limit)
        left = slo[model] - now
        dropped = _given_up(
            model, queue, head[model], tail[model], left, latency, limit[model], rate[model]
        )
        _widen(margin, slo, model, dropped)
        head[model] += dropped
        budget = min(queue[model, head[model]] + left, end - now)
        most = min(limit[model], tail[model] - head[model])
        rows = _rows_in_time(latency, model, most, budget)
        if rows < most and end < few_end:
            budget = min(queue[model, head[model]] + left, few_end - now)
            rows = max(rows, _rows_in_time(latency, model, most, budget))
        free = now + latency[model, rows]
        for index in range(head[model], head[model] + rows):
            met += free <= queue[model, index] + slo[model] + _ROUNDING_MS
        in_time[model] += met
        running = model
        head[model] += rows
        waiting -= dropped + rows


@njit(cache=True, error_model="numpy", inline="always")
def _narrow(margin: Floats, slo: Floats, model: int, met: int) -> None:
    """``AdmissionMargin.met``, so many times."""
    narrower = margin[model] - met * _NARROWING * slo[model]
    margin[model] = max(_MARGIN * slo[model], narrower)


@njit(cache=True, error_model="numpy", inline="always")
def _widen(margin: Floats, slo: Floats, model: int, dropped: int) -> None:
    """``AdmissionMargin.dropped``; nobody is late, since predictions are true here."""
    wider = margin[model] + dropped * _DROP_STEP * slo[model]
    margin[model] = min(_MOST_MARGIN * slo[model], wider)


@njit(cache=True, error_model="numpy", inline="always")
def _admitted(
    model: int,
    now: float,
    free: float,
    queue: Floats,
    head: Ints,
    tail: Ints,
    latency: Floats,
    slo: Floats,
    row: Floats,
    margin: float,
) -> bool:
    """``DeadlineAdmission``."""
    deadline, last = now + slo[model], _NEVER
    start = total = max(now, free)
    for other in range(len(slo)):
        rows = tail[other] - head[other]
        if rows == 0:
            continue
        before = head[other]
        if other == model:
            before = tail[other]
        while before < tail[other] and queue[other, before] + slo[other] <= deadline:
            before += 1
        start += (before - head[other]) * row[other]
        total += rows * row[other]
        tail_deadline = queue[other, tail[other] - 1] + slo[other]
        if deadline < tail_deadline < last:
            last = tail_deadline
    if start + latency[model, 1] + (margin if start > now else 0.0) > deadline:
        return False
    return last == _NEVER or row[model] <= _LENIENCE * (last - now) or total + row[model] <= last


@njit(cache=True, error_model="numpy", inline="always")
def _first(
    queue: Floats, head: Ints, tail: Ints, latency: Floats, slo: Floats, limit: Ints
) -> tuple[int, float, float]:
    """The model with the nearest deadline, when the first of the others must begin, and the first
    of those that have no whole batch waiting."""
    first, nearest, begin, few = 0, _NEVER, _NEVER, _NEVER
    for model in range(len(slo)):
        if tail[model] > head[model] and queue[model, head[model]] + slo[model] < nearest:
            first, nearest = model, queue[model, head[model]] + slo[model]
    for model in range(len(slo)):
        if model != first and tail[model] > head[model]:
            latest = queue[model, head[model]] + slo[model] - latency[model, 1]
            begin = min(begin, latest)
            if tail[model] - head[model] < limit[model]:
                few = min(few, latest)
    return first, begin, few


@njit(cache=True, error_model="numpy", inline="always")
def _rows_in_time(latency: Floats, model: int, rows: int, budget: float) -> int:
    """``policy.batching.rows_in_time``."""
    low, high = 1, rows
    if latency[model, rows] <= budget - _ROUNDING_MS:
        return rows
    while high - low > 1:
        middle = (low + high) // 2
        if latency[model, middle] <= budget - _ROUNDING_MS:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True, error_model="numpy", inline="always")
def _given_up(
    model: int,
    queue: Floats,
    head: int,
    tail: int,
    left: float,
    latency: Floats,
    limit: int,
    rate: float,
) -> int:
    """``policy.batching.given_up``; who came at t has t + ``left`` ms of its SLO left."""
    best, fewest, dropped, waiting = 0, _MOST, 0, tail - head
    while dropped < min(waiting, fewest):
        most = min(limit, waiting - dropped)
        budget = queue[model, head + dropped] + left
        rows = _rows_in_time(latency, model, most, budget)
        run = latency[model, rows]
        if run <= budget - _ROUNDING_MS:
            if rows == most and dropped == 0:
                return 0
            first = head + dropped + rows
            lost = dropped + _lost_next(
                model, queue, first, tail, left - run, latency, limit, rate * run
            )
            if lost < fewest:
                best, fewest = dropped, lost
            if rows == most:
                break
        dropped += 1
    return best


@njit(cache=True, error_model="numpy", inline="always")
def _lost_next(
    model: int,
    queue: Floats,
    first: int,
    tail: int,
    left: float,
    latency: Floats,
    following: int,
    new: float,
) -> int:
    """``policy.batching._lost_next``, of those that a batch leaves while ``new`` rows come."""
    low, high = 0, tail - first
    while low < high:
        middle = (low + high) // 2
        wanted = tail - first - middle + new
        rows = following if wanted >= following else max(1, int(np.ceil(wanted - 0.5)))
        if latency[model, rows] <= queue[model, first + middle] + left - _ROUNDING_MS:
            high = middle
        else:
            low = middle + 1
    return low
