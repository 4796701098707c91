"""The highest rate that each share can serve of each model, all of it in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profile, Profiles
from interlace.perf.latency import Quantile, believed_ms


@dataclass(frozen=True, slots=True)
class Bound:
    """Accelerators needed at least; ``price`` is what one more request/s of a model adds."""

    accelerators: float
    price: Mapping[str, float]


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShareRates:
    """Demands that some share serves, and what each share serves of each of them.

    ``highest_rows_per_s`` is (models, shares), 0 where the share serves nothing in time; it never
    falls with the share. ``needed_rows_per_s`` is what must be served of each. ``excluded`` are
    models that ask for something and can have none of it in time, so that no bound counts them.
    """

    demand: tuple[Demand, ...]
    shares_pct: tuple[int, ...]
    highest_rows_per_s: Floats
    needed_rows_per_s: Floats
    excluded: tuple[str, ...]


class _Measured(NamedTuple):
    """Points of all models, by model, share and batch; ``model`` counts from 0."""

    model: npt.NDArray[np.int64]
    share_pct: npt.NDArray[np.int64]
    batch: Floats
    ms: Floats


def highest_rates(
    demand: Sequence[Demand], gpu: Gpu, profiles: Profiles, quantile: Quantile = "p95_ms"
) -> ShareRates:
    """max b / L(b, p) over batches with L(b, p) <= SLO, for each model and legal share p.

    Nothing is smoothed: a bound must not be above what was measured. Between two measured batches L
    is a straight line, on which b / L(b) only rises or only falls. So the maximum is at a measured
    batch, or where a line meets the SLO or the largest batch. Rows beyond the largest measured
    batch are taken to gain nothing. A share that was not measured does what the largest measured
    share below it does, as planners assume, and a share does no less than smaller ones.
    """
    asking = [one for one in demand if 0 < one.rows_per_s < inf]
    known = [one for one in asking if one.model in profiles and profiles[one.model].points]
    if not known:
        none = np.zeros((0, len(gpu.shares_pct)))
        return ShareRates((), gpu.shares_pct, none, none.sum(1), tuple(one.model for one in asking))
    points = _measured(known, profiles, quantile)
    best = _of_legal(points, _best(points, known), len(known), gpu.shares_pct)
    able = best[:, -1] > 0
    served = tuple(one for one, can in zip(known, able.tolist(), strict=True) if can)
    there = {one.model for one in served}
    needed = np.array([one.attainment * one.rows_per_s for one in served])
    excluded = tuple(one.model for one in asking if one.model not in there)
    return ShareRates(served, gpu.shares_pct, best[able], needed, excluded)


def _measured(known: Sequence[Demand], profiles: Profiles, quantile: Quantile) -> _Measured:
    flat = [
        (index, share, batch, ms)
        for index, one in enumerate(known)
        for (batch, share), ms in filled(profiles[one.model], quantile)
    ]
    model, share, batch, ms = (np.array(column) for column in zip(*flat, strict=True))
    order = np.lexsort((batch, share, model))
    costs = np.maximum(ms[order].astype(float), 1e-9)
    return _Measured(model[order], share[order], batch[order].astype(float), costs)


def filled(profile: Profile, quantile: Quantile) -> list[tuple[tuple[int, int], float]]:
    """What was measured, and at each share the larger batches that only smaller shares ran.

    A larger share takes no longer for them than the smaller one, nor longer a row than for its own
    largest batch, but no less than for that: no more than surfaces take (``curves.monotone``).
    """
    points = list(believed_ms(profile.points, quantile).items())
    largest: dict[int, int] = {}
    for (batch, share), _ in points:
        largest[share] = max(largest.get(share, 0), batch)
    if len(set(largest.values())) == 1:
        return points
    filled: list[tuple[tuple[int, int], float]] = []
    smaller: list[tuple[int, float]] = []
    for share in sorted(largest):
        own = sorted((batch, ms) for (batch, s), ms in points if s == share)
        last, last_ms = own[-1]
        smaller = own + [
            (b, max(last_ms, min(ms, last_ms * b / last))) for b, ms in smaller if b > last
        ]
        filled += [((batch, share), ms) for batch, ms in smaller]
    return filled


def _best(points: _Measured, known: Sequence[Demand]) -> Floats:
    """The highest b / L(b) in time at each point and on the line from the point before it."""
    slo = np.array([one.slo_ms for one in known])[points.model]
    most = np.array([float(one.max_batch) for one in known])[points.model]
    batch, ms = points.batch, points.ms
    joined = (np.diff(points.model) == 0) & (np.diff(points.share_pct) == 0)
    first = np.concatenate([[True], ~joined])
    # Fewer rows than the smallest measured batch take what that batch takes.
    rows = np.where(first, np.minimum(batch, most), batch)
    found = np.where((rows <= most) & (ms <= slo), rows / ms, 0.0)
    low, low_ms = np.roll(batch, 1), np.roll(ms, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (ms - low_ms) / (batch - low)
        at_most_ms = low_ms + slope * (most - low)
        at_slo = low + (slo - low_ms) / slope
        capped = ~first & (low <= most) & (most < batch) & (at_most_ms <= slo)
        late = (np.minimum(low_ms, ms) < slo) & (slo < np.maximum(low_ms, ms))
        crossing = ~first & late & (at_slo <= most)
        found = np.maximum(found, np.where(capped, most / at_most_ms, 0.0))
        found = np.maximum(found, np.where(crossing, at_slo / slo, 0.0))
    return 1000.0 * found


def _of_legal(
    points: _Measured, rows_per_s: Floats, models: int, legal_pct: Sequence[int]
) -> Floats:
    """Rates at legal shares, (models, shares), each at least those of smaller measured shares."""
    seen, column = np.unique(points.share_pct, return_inverse=True)
    best = np.zeros((models, len(seen) + 1))  # column 0: below anything measured
    np.maximum.at(best, (points.model, column + 1), rows_per_s)
    best = np.maximum.accumulate(best, axis=1)
    return best[:, np.searchsorted(seen, legal_pct, side="right")]
