"""What one model alone in a partition can be asked for, so that its SLO holds: a table.

The model is one host, L(b) = fixed + row b, renewal arrivals with gamma gaps, and the dispatcher's
own rules. The table holds the highest rate at which a given part of the requests ends in time. It
depends on the SLO in latencies of one row, on a row's part of that latency, on the largest batch
and on ``cv``. Every cell was played request by request (`bench.planning.capacity_table`, last in
commit 0e65b79f); `tests/bench/test_promise.py` checks the table against the engine.

Between cells it is interpolated in logarithms, and over the square of ``cv``: a gap below x has a
probability of nearly (rate x)^(1 / cv^2) under gamma gaps. Of a burst behind a running batch as
many rows are admitted as the SLO has time for, and the rate jumps with each such row. So the axis
of SLOs is the number of rows that may wait (``waiting``), with cells on both sides of the first
jumps.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np

from interlace.packing.batch_options import BatchOptions, DemandArrays, Ints
from interlace.packing.queueing import Floats

#: The least margin of ``engine.admission_margin``, in SLOs.
LEAST_MARGIN: Final = 0.02
#: From this SLO on, in L(1), a row behind a running one is admitted.
BEHIND_ONE: Final = 2.0 / (1.0 - LEAST_MARGIN)
#: Rows that wait are counted up to this number.
COUNTED: Final = 13
#: The longest SLO in the table, in L(1).
LONGEST: Final = 40.0
_BELOW: Final = (
    *(1.0, 1.05, 1.1, 1.25, 1.35, 1.5, 1.65, 1.75, 1.85, 1.9, 1.94, 1.97, 2.0, 2.025, 2.039),
)
#: Between two counts of rows that may wait; the more may, the less there is between.
_PARTS: Final = (
    *((0.02, 0.25, 0.5, 0.75, 0.98),) * 2,
    *((0.02, 0.5, 0.75, 0.98),) * 5,
    (0.02, 0.98),
)
_BEYOND: Final = (0.03, 0.08, 0.15, 0.22, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0)
#: The axes: ``waiting``; a row's part of L(1); largest batch; cv of gaps; part not in time.
WAITS: Final = (
    *(slo - BEHIND_ONE for slo in _BELOW),
    *(rows + part for rows in range(COUNTED) for part in _PARTS[min(rows, len(_PARTS) - 1)]),
    *(COUNTED + part for part in _BEYOND),
)
ROW_PARTS: Final = (0.0, 0.01, 0.03, 0.05, 0.08, 0.15, 0.27, 0.5, 1.0)
LIMITS: Final = (1, 2, 4, 8, 16, 32, 64)
CVS: Final = (0.3, 0.7, 1.0, 1.4, 2.0, 2.5, 3.2, 4.0)
LOSSES: Final = (0.1, 0.03, 0.01, 0.003, 0.001)
TABLE: Final = Path(__file__).with_name("single_model_capacity.npy")

_ROUNDING: Final = 1e-9
#: Rows in an L(1) that are a trickle; hosts that are asked at most to serve one each.
_TRICKLE, _MOST_HOSTS = 0.02, 50.0
#: The part of the table's rates that is used: neighbouring cells differ by more than the rest.
_KEPT: Final = 0.96
#: The least part of L(1) that a row costs several hosts whose SLO has no time for two batches.
_TIGHT_ROW: Final = 0.45
#: The range of losses; beyond the ends of the table, values are extrapolated.
_LEAST_LOSS, _MOST_LOSS = 1e-5, 0.5


def alone_rows_per_s(options: BatchOptions, arrays: DemandArrays) -> Floats:
    """Models x choices: what each may be asked for alone, in batches of at most that choice.

    With n hosts of one queue, a host ends a batch every nth part of a batch's time. So a request
    takes 1 + 1/n batches where a lone host takes two, and n hosts are as good as one with an SLO
    2n / (n + 1) times as long. A little is kept back for what lies between the cells.
    """
    run_ms, rows = options.latency_ms, options.rows
    first_ms, models = run_ms[:, :1], np.arange(len(rows))[:, None]
    hosts = arrays.replicas[:, None]
    slo_ms = arrays.slo_ms[:, None] * 2.0 * hosts / (hosts + 1.0)
    row = _row_parts(options, slo_ms, arrays.cv[:, None])
    tight = (hosts > 1.0) & (arrays.slo_ms[:, None] < 2.0 * first_ms)
    row = np.where(tight, np.maximum(row, _TIGHT_ROW), row)
    slo = np.where(np.isfinite(first_ms), slo_ms / first_ms, 0.0)
    given = most_rows(slo, row, options.limits, arrays.cv[:, None], arrays.attainment[:, None])
    # Hosts in turn wait for larger batches; where rows of those cost more, that is lost.
    end = np.minimum((2.0 * run_ms <= slo_ms).sum(axis=1, keepdims=True), np.arange(rows.shape[1]))
    pace = np.where(np.isfinite(run_ms), rows / run_ms, 0.0)
    worse = pace[models, end] / np.maximum(np.maximum.accumulate(pace, axis=1), _ROUNDING)
    given = given * worse ** np.minimum(4.0 - 4.0 / hosts, 2.0)
    found = _KEPT * given * 1000.0 / np.where(np.isfinite(first_ms), first_ms, np.inf)
    most, most_rows_per_s = (each.max(axis=1, keepdims=True) for each in (given, found))
    hopeless = (most < _TRICKLE) & (most_rows_per_s * _MOST_HOSTS < arrays.rows_per_s[:, None])
    return np.where(np.isfinite(run_ms) & ~hopeless, found, 0.0)


def _row_parts(options: BatchOptions, slo_ms: Floats, cv: Floats) -> Floats:
    """Models x choices: what a row costs, in L(1), on the line that stands for the latencies.

    The line goes through L(1) and the largest batch that fits twice into the SLO. Bursts (``cv``)
    make that batch up to twice as large, but not larger than the choice.
    """
    run_ms, first_ms = options.latency_ms, options.latency_ms[:, :1]
    rows = np.where(np.isfinite(run_ms), options.rows, np.inf)
    batch = _between(options.rows, run_ms, np.broadcast_to(slo_ms / 2.0, first_ms.shape))
    batch = np.minimum(np.maximum(batch * np.clip(cv, 1.0, 2.0), 2.5), options.rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        row = (_between(run_ms, rows, batch) / first_ms - 1.0) / (batch - 1.0)
    return np.clip(np.where(np.isfinite(row), row, 1.0), 0.0, 1.0)


def _between(known: Floats, over: Floats, at: Floats) -> Floats:
    """``known`` (models x choices) where ``over`` is ``at`` (models x any).

    ``over`` rises until it is infinite, where ``known`` does not matter.
    """
    models, last = np.arange(len(over))[:, None], over.shape[1] - 1
    low = np.clip((over[:, None, :] <= at[:, :, None]).sum(axis=2) - 1, 0, last)
    high = np.minimum(low + 1, last)
    with np.errstate(invalid="ignore", divide="ignore"):
        part = (at - over[models, low]) / (over[models, high] - over[models, low])
        found = known[models, low] + (known[models, high] - known[models, low]) * part
    between: Floats = np.where((part > 0.0) & (part <= 1.0), found, known[models, low])
    return between


def fluid(slo: Floats, row: Floats, limit: Floats) -> Floats:
    """Rows per L(1), back to back, in the largest batches that fit twice into the SLO."""
    within = 1.0 + np.maximum(slo / 2.0 - 1.0, 0.0) / np.maximum(row, _ROUNDING)
    batch = np.minimum(within, limit)
    rows: Floats = batch / (1.0 - row + row * batch)
    return rows


def most_rows(slo: Floats, row: Floats, limit: Floats, cv: Floats, attainment: Floats) -> Floats:
    """The highest rate in rows per L(1) at which ``attainment`` of the requests are in time.

    ``slo`` in L(1), ``row`` the part of L(1) that a further row costs; arrays that broadcast. 0
    where the SLO is below L(1).
    """
    slo, row, limit, cv, attainment = np.broadcast_arrays(slo, row, limit, cv, attainment)
    loss = np.clip(1.0 - attainment, _LEAST_LOSS, _MOST_LOSS)
    places = [
        _place(waiting(slo, row, limit), np.array(WAITS)),
        _place(np.sqrt(row), np.sqrt(ROW_PARTS)),
        _place(np.log(limit), np.log(LIMITS)),
        _place(np.maximum(cv, CVS[0]) ** 2, np.square(CVS), beyond=True),
        _place(np.log(loss), np.log(LOSSES[::-1]), beyond=True),
    ]
    known, found = _table(), np.zeros(slo.shape)
    for corner in product((0, 1), repeat=len(places)):
        weight = np.ones(slo.shape)
        for side, (_, part) in zip(corner, places, strict=True):
            weight = weight * (part if side else 1.0 - part)
        index = tuple(low + side for side, (low, _) in zip(corner, places, strict=True))
        found += weight * known[index]
    full = limit / (1.0 - row + row * limit) / (1.0 - loss)
    rows = np.minimum(np.exp(found) * fluid(slo, row, limit), full)
    there: Floats = np.where(slo >= 1.0 - _ROUNDING, rows, 0.0)
    return there


def waiting(slo: Floats, row: Floats, limit: Floats) -> Floats:
    """How many rows may wait behind a running one within an SLO in L(1), as admission counts them.

    Below ``BEHIND_ONE`` what the SLO is short of that (negative); from ``COUNTED`` on the part of
    the way to ``LONGEST``, in logarithms.
    """
    each = waiting_row(row, limit)
    counted = BEHIND_ONE + COUNTED * each
    beyond = np.log(np.maximum(slo, counted) / counted) / np.log(LONGEST / counted)
    rows = np.minimum((slo - BEHIND_ONE) / each, COUNTED + beyond)
    found: Floats = np.where(slo < BEHIND_ONE, slo - BEHIND_ONE, rows)
    return found


def waiting_row(row: Floats, limit: Floats) -> Floats:
    """The SLO that one more waiting row takes, in L(1): its part of the largest batch."""
    each: Floats = ((1.0 - row) / limit + row) * BEHIND_ONE / 2.0
    return each


def _place(at: Floats, axis: Floats, beyond: bool = False) -> tuple[Ints, Floats]:
    """The cell of each value, and how far it is into it; held at the ends, or ``beyond`` them."""
    if not beyond:
        at = np.clip(at, axis[0], axis[-1])
    low = np.clip(np.searchsorted(axis, at, side="right") - 1, 0, len(axis) - 2)
    return low, (at - axis[low]) / (axis[low + 1] - axis[low])


@cache
def _table() -> Floats:
    """Logarithms of the highest rates over ``fluid``; losses rise."""
    known: Floats = np.load(TABLE).astype(float)[..., ::-1]
    return known
