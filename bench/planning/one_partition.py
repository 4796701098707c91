"""One partition as our dispatcher and admission run it, compiled: hours of arrivals in a second.

What the engine does with one partition that is busy with known latencies, and nothing else of it:
`policy.admission.DeadlineAdmission`, `policy.dispatchers.deadline` and `policy.batching` for
requests of one row, without faults, stated priorities or fairness. `tests/bench/test_promise.py`
holds it to the engine, request for request.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDING_MS: Final = 1e-6
_NEVER: Final = 1e300
_MARGIN: Final = 0.02  #: of the SLO: the least admission margin
_LENIENCE: Final = 0.02
_MOST: Final = 1 << 60


class Hosted(NamedTuple):
    """The models of a partition: L(0) to L(largest) of each, SLOs, and their largest batches."""

    latency_ms: Floats  #: models x (largest + 1)
    slo_ms: Floats
    limit: Ints


def arrivals_ms(
    rows_per_s: Floats, cv: Floats, seconds: float, seed: int = 0
) -> tuple[Floats, Ints]:
    """Times in ms and models of renewal arrivals with gamma gaps, as ``attainment`` draws them."""
    random = np.random.default_rng(seed)
    each = []
    for rate, variation in zip(rows_per_s.tolist(), cv.tolist(), strict=True):
        count = int(rate * seconds * 1.5) + 20
        shape = 1.0 / variation**2
        times = np.cumsum(random.spawn(1)[0].gamma(shape, 1000.0 / rate / shape, count))
        each.append(times[times < seconds * 1000.0])
    times = np.concatenate(each)
    which = np.repeat(np.arange(len(each)), [len(one) for one in each])
    order = np.argsort(times, kind="stable")
    return times[order], which[order]


def kept(
    hosted: Hosted, rows_per_s: Floats, cv: Floats, seconds: float = 20.0, seed: int = 0
) -> Floats:
    """The part of each model's requests that end in time; 1 where none were sent."""
    times_ms, which = arrivals_ms(rows_per_s, cv, seconds, seed)
    in_time = played(times_ms, which, *hosted, rows_per_s / 1000.0)
    sent = np.bincount(which, minlength=len(rows_per_s))
    return np.where(sent > 0, in_time / np.maximum(sent, 1), 1.0)


@njit(cache=True)
def played(
    times: Floats, which: Ints, latency: Floats, slo: Floats, limit: Ints, rate: Floats
) -> Any:
    """Requests of each model that end in time; ``rate`` in rows per ms is what the engine knows."""
    models, count, now, free = len(slo), len(times), 0.0, 0.0
    queue = np.empty((models, count))
    head, tail = np.zeros(models, np.int64), np.zeros(models, np.int64)
    in_time, upcoming = np.zeros(models, np.int64), 0
    while True:
        while upcoming < count and (times[upcoming] < free or _idle(head, tail)):
            now, model = times[upcoming], which[upcoming]
            upcoming += 1
            if _admitted(model, now, free, queue, head, tail, latency, slo, limit):
                queue[model, tail[model]] = now
                tail[model] += 1
        if _idle(head, tail):
            return in_time
        now = max(now, free)
        for model in range(models):
            while tail[model] > head[model] and (
                queue[model, head[model]] + slo[model] - now < latency[model, 1] - _ROUNDING_MS
            ):
                head[model] += 1
        if _idle(head, tail):
            continue
        model, end = _first(queue, head, tail, latency, slo)
        waiting = queue[model, head[model] : tail[model]] + slo[model] - now
        dropped = _given_up(waiting, latency[model], limit[model], rate[model])
        head[model] += dropped
        budget = min(waiting[dropped], end - now)
        most = min(limit[model], tail[model] - head[model])
        rows = _rows_in_time(latency[model], most, budget)
        free = now + latency[model, rows]
        for index in range(head[model], head[model] + rows):
            in_time[model] += free <= queue[model, index] + slo[model] + _ROUNDING_MS
        head[model] += rows


@njit(cache=True)
def _idle(head: Ints, tail: Ints) -> bool:
    for model in range(len(head)):
        if tail[model] > head[model]:
            return False
    return True


@njit(cache=True)
def _admitted(
    model: int,
    now: float,
    free: float,
    queue: Floats,
    head: Ints,
    tail: Ints,
    latency: Floats,
    slo: Floats,
    limit: Ints,
) -> bool:
    """``DeadlineAdmission`` with the least margin: predictions are true here."""
    deadline, last = now + slo[model], _NEVER
    start = total = max(now, free)
    own = latency[model, limit[model]] / limit[model]
    for other in range(len(slo)):
        rows = tail[other] - head[other]
        if rows == 0:
            continue
        row_ms = latency[other, limit[other]] / limit[other]
        waiting = queue[other, head[other] : tail[other]]
        before = np.searchsorted(waiting, deadline - slo[other], side="right")
        start += before * row_ms
        total += rows * row_ms
        tail_deadline = waiting[-1] + slo[other]
        if deadline < tail_deadline < last:
            last = tail_deadline
    margin = _MARGIN * slo[model] if start > now else 0.0
    if start + latency[model, 1] + margin > deadline:
        return False
    return last == _NEVER or own <= _LENIENCE * (last - now) or total + own <= last


@njit(cache=True)
def _first(
    queue: Floats, head: Ints, tail: Ints, latency: Floats, slo: Floats
) -> tuple[int, float]:
    """The model with the nearest deadline, and when the first of the others must begin."""
    first, nearest, begin = 0, _NEVER, _NEVER
    for model in range(len(slo)):
        if tail[model] > head[model] and queue[model, head[model]] + slo[model] < nearest:
            first, nearest = model, queue[model, head[model]] + slo[model]
    for model in range(len(slo)):
        if model != first and tail[model] > head[model]:
            begin = min(begin, queue[model, head[model]] + slo[model] - latency[model, 1])
    return first, begin


@njit(cache=True)
def _rows_in_time(latency: Floats, rows: int, budget: float) -> int:
    """``policy.batching.rows_in_time``."""
    low, high = 1, rows
    if latency[rows] <= budget - _ROUNDING_MS:
        return rows
    while high - low > 1:
        middle = (low + high) // 2
        if latency[middle] <= budget - _ROUNDING_MS:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True)
def _given_up(left: Floats, latency: Floats, limit: int, rate: float) -> int:
    """``policy.batching.given_up``; ``left`` is what each that waits has left of its SLO."""
    best, fewest, dropped = 0, _MOST, 0
    while dropped < min(len(left), fewest):
        most = min(limit, len(left) - dropped)
        rows = _rows_in_time(latency, most, left[dropped])
        if latency[rows] <= left[dropped] - _ROUNDING_MS:
            if rows == most and dropped == 0:
                return 0
            lost = dropped + _lost_next(left[dropped + rows :], latency, limit, rate, latency[rows])
            if lost < fewest:
                best, fewest = dropped, lost
            if rows == most:
                break
        dropped += 1
    return best


@njit(cache=True)
def _lost_next(left: Floats, latency: Floats, following: int, rate: float, run: float) -> int:
    """``policy.batching._lost_next``, of those that a batch of ``run`` ms leaves."""
    low, high = 0, len(left)
    while low < high:
        middle = (low + high) // 2
        wanted = len(left) - middle + rate * run
        rows = following if wanted >= following else max(1, int(np.ceil(wanted - 0.5)))
        if run + latency[rows] <= left[middle] - _ROUNDING_MS:
            high = middle
        else:
            low = middle + 1
    return low
