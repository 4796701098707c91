"""The gathering bound: batches hold only what arrived within a while, and arrivals are random.

Theorem. Let the gaps between a model's arrivals be independent and alike. Any scheduler that
answers a part a of them within the SLO S takes, in the long run, at least c accelerators x ms an
arrival,

    c = a beta + ((1 - d) ln z + d ln D) / theta,    d = 1 - a,    D = d / (1 - d) sum_h h z^h A_h,

whatever the numbers beta >= 0, theta > 0 and z with sum_h z^h A_h + D <= 1, where A_h is as below.
It may know all arrivals beforehand, have any number of accelerators, and wait for nobody.

Proof. 1. What is late in a batch may be left out of it, for no batch takes longer with fewer
rows. A batch of b rows that are all in time has members that arrived within w_b = S - L(b, p) of
each other, and costs c_b = worth_p L(b, p). Let alpha_p = min_b (c_b - beta b) >= 0. Then the cost
is at least alpha_p + beta b: beta for each answered request, and alpha for each batch. From here on
a batch is a set of arrivals with its span (last less first) at most w_b.

2. Among all ways to deal the answered requests out to these batches, without changing their sizes,
take one of least summed span. Then no request that is given up lies within a span: it would take
the place of the batch's last member. Any two spans are disjoint, or one lies between two
neighbouring members of the other. Else the earlier requests of both would go to the batch that
begins first, or those within the inner span to the inner batch. Either makes the sum less. So the
answered requests fall into runs of successive arrivals, each a batch by itself, or one of at least
2 rows with m >= 1 batches inside. Of a run of h requests the first kind spans at most w_h. The
other spans at most w_2 of its outer batch, holds at most m + 1 of the largest batch, and costs
alpha_p + m min alpha.

3. What a kind t of run allows to be one run allows of fewer requests too. So it does no harm if a
run takes as many successive arrivals as its kind allows, N_t, and if no cheaper kind would take as
many: the others have less left to do. As gaps are alike, P(run t holds h) has a bound that follows
from P(the sum of h - 1 gaps <= w), whatever came before; A_h = sum_t exp(-theta alpha_t) P(...).

4. Take a sequence of kinds, with requests given up between them. The probability that it comes true
with n arrivals, at a cost of alphas of at most k n, is at most
exp(theta k n) prod(P exp(-theta alpha)). Sum over all sequences that give up at most d n, with
exp(eta (d n - given up)) and z^-n z^(requests). The sum is at most exp(n (theta k + eta d - ln z))
times a geometric series of sum_h z^h A_h + z exp(-eta). That ratio is at most 1 for
D = z exp(-eta), so no such sequence exists in the long run (Borel and Cantelli) if
theta k < ln z - eta d. That is the bound.

The sum over models is a bound on accelerators wherever no layout's partitions are worth more
than one, as for the area bound, which is the case of beta = min c_b / b. Arrivals are taken to be
one row each with gaps of Gamma distribution, as a demand's cv says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, lgamma, log
from typing import Final, NamedTuple

import numpy as np

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.packing.bounds.rates import Bound, Floats, filled
from interlace.perf.latency import Quantile

#: Times, in mean gaps, that probabilities are kept for: each so many times the one before it.
_STEP: Final = 1.01
_SHORTEST: Final = 1e-3
#: Deviations from the mean beyond which a sum of gaps is taken to fit for certain, and below which
#: as often as there, which is below 1e-300.
_CERTAIN: Final = 12.0
_NEVER: Final = 40.0
_PRECISE: Final = 1e-17
_TERMS: Final = 16  #: that are added before it is looked at whether more are needed


class GapSums(NamedTuple):
    """``within[m, t]``: the probability that ``m`` independent gaps take at most the t-th time."""

    within: Floats

    def at_most(self, gaps: Floats, mean_gaps: Floats) -> Floats:
        """An upper bound on P(the sum of ``gaps`` gaps <= ``mean_gaps``); gaps have a mean of 1.

        Times are rounded up by at most one percent; 0 where a time is below 0.
        """
        steps = np.log(np.maximum(mean_gaps, _SHORTEST) / _SHORTEST) / log(_STEP)
        place = np.minimum(np.ceil(steps - 1e-9).astype(int), self.within.shape[1] - 1)
        found: Floats = np.where(mean_gaps < 0, 0.0, self.within[gaps.astype(int), place])
        return found


@lru_cache(maxsize=8)
def gap_sums(cv: float, gaps: int, mean_gaps: float) -> GapSums:
    """Sums of up to ``gaps`` gaps of Gamma distribution in times up to ``mean_gaps``; then certain.

    m gaps of mean 1 and coefficient of variation cv are one of shape m / cv^2 and scale cv^2; cv 1
    is Poisson's.
    """
    count = max(2, ceil(log(max(mean_gaps, 1.0) / _SHORTEST) / log(_STEP)) + 1)
    times: Floats = _SHORTEST * _STEP ** np.arange(float(count)) / cv**2
    rows = [np.ones(count), *(_below(m / cv**2, times) for m in range(1, gaps + 1))]
    return GapSums(np.column_stack([np.array(rows), np.ones(gaps + 1)]))


def _below(shape: float, times: Floats) -> Floats:
    """P(Gamma(shape, 1) <= time) = x^a exp(-x) / Gamma(a + 1) * sum_n x^n / (a + 1)_n, at least."""
    deviation = 1.0 + shape**0.5
    low, high = shape - _NEVER * deviation, shape + _CERTAIN * deviation
    first, last = np.searchsorted(times, [low, high])
    found, x = np.ones(len(times)), times[first:last]
    term, total, n = np.ones(len(x)), np.ones(len(x)), 0
    while len(x) and (term > _PRECISE * total).any():
        for _ in range(_TERMS):
            n += 1
            term *= x / (shape + n)
            total += term
    front = np.exp(shape * np.log(x) - x - lgamma(shape + 1.0))
    found[first:last] = np.minimum(1.0, front * total * (1.0 + 1e-12))
    found[:first] = found[first] if last > first else 1.0
    return found


@dataclass(frozen=True, slots=True)
class BatchTypes:
    """Latencies of one model's batches, (types, rows from 1); ``worth`` of one type's partition.

    A type is a measured share, at the legal share that is worth least among those which do what it
    does. No batch takes less than ``ms`` says: more rows never less, a larger share never more.
    """

    ms: Floats
    worth: Floats


def batch_types(
    one: Demand, gpu: Gpu, worth: Floats, profiles: Profiles, quantile: Quantile
) -> BatchTypes:
    """The types of ``one``'s batches of up to ``max_batch`` rows where ``worth`` is by legal share.

    Rows beyond the largest measured batch gain nothing, fewer than the smallest take what it takes.
    """
    by_share: dict[int, list[tuple[int, float]]] = {}
    for (batch, share), took_ms in filled(profiles[one.model], quantile):
        by_share.setdefault(share, []).append((batch, took_ms))
    rows = np.arange(1.0, one.max_batch + 1.0)
    shares = sorted(by_share)
    ms: Floats = np.array([_line(sorted(by_share[share]), rows) for share in shares])
    ms = np.minimum.accumulate(ms, axis=0)
    ms = np.minimum.accumulate(ms[:, ::-1], axis=1)[:, ::-1]
    least = _least(gpu.shares_pct, worth, shares)
    return BatchTypes(ms[np.isfinite(least)], least[np.isfinite(least)])


def _line(known: list[tuple[int, float]], rows: Floats) -> Floats:
    batch, ms = (np.array(column, float) for column in zip(*known, strict=True))
    found: Floats = np.interp(rows, batch, ms) * np.maximum(1.0, rows / batch[-1])
    return found


def _least(legal_pct: Sequence[int], worth: Floats, shares: Sequence[int]) -> Floats:
    """What the cheapest legal share costs that does as each measured share does; else infinite."""
    found = np.full(len(shares), np.inf)
    which = np.searchsorted(shares, legal_pct, side="right") - 1
    for place, value in zip(which.tolist(), worth.tolist(), strict=True):
        if place >= 0:
            found[place] = min(found[place], value)
    return found


#: beta as parts of the least cost of a request; theta as parts of what looks best, that one first.
_ROW_PARTS: Final = (0.0, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97)
_THETAS: Final = (1.0, 0.3, 0.6, 1.6, 3.0)
#: A part that is not looked for.
_LITTLE: Final = 0.01
#: Where more arrive in a window than so many, or they hardly vary, batches are taken to be full:
#: the area bound's.
_MOST_IN_WINDOW: Final = 160.0
_LEAST_CV: Final = 0.1
#: Deviations of arrivals in a window with which a batch nearly always gathers.
_SURELY: Final = 1.5
_NEWTON: Final = 6
_MOST_GAPS: Final = 100
#: Models that are looked at together.
_CHUNK: Final = 250
_TINY: Final = 1e-300
_ROUNDING: Final = 1e-12
#: Different variations of arrivals that are looked at, those of most models first; of others, the
#: area bound's.
_VARIATIONS: Final = 8


def gathering(
    demand: Sequence[Demand],
    gpu: Gpu,
    worth: Floats,
    area: Bound,
    profiles: Profiles,
    quantile: Quantile,
) -> Bound:
    """``area``, the bound of full batches at these worths by legal share, made sharper.

    The price is beta and no more: what one more request adds to batches that are there.
    """
    price = dict(area.price)
    total = area.accelerators
    for chunk in _chunks(demand, gpu, worth, profiles, quantile):
        sharper, slope = chunk.best()
        for one, cost, row in zip(chunk.demand, sharper.tolist(), slope.tolist(), strict=True):
            full = area.price[one.model] * one.rows_per_s
            if cost > full:
                total += cost - full
                price[one.model] = row
    return Bound(total, price)


class _Gathered(NamedTuple):
    demand: Demand
    types: BatchTypes
    gap_ms: float
    longest: int  #: requests of the longest run that is looked at


def _chunks(
    demand: Sequence[Demand], gpu: Gpu, worth: Floats, profiles: Profiles, quantile: Quantile
) -> Iterator[_GatheredTogether]:
    """Models of like variation and rate together, those left out whose batches can always fill."""
    known: list[_Gathered] = []
    common = {cv for cv, _ in Counter(one.cv for one in demand).most_common(_VARIATIONS)}
    for one in demand:
        types = batch_types(one, gpu, worth, profiles, quantile)
        gap_ms = 1000.0 / one.rows_per_s
        window = float(one.slo_ms - types.ms[:, 0].min(initial=np.inf)) / gap_ms
        if (
            one.cv in common
            and one.cv >= _LEAST_CV
            and 0 <= window <= _MOST_IN_WINDOW
            and _can_gain(one, types)
        ):
            longest = int(window + 8.0 * max(1.0, one.cv) * (window + 1.0) ** 0.5) + 12
            known.append(_Gathered(one, types, gap_ms, longest))
    known.sort(key=lambda one: (one.demand.cv, one.longest, one.demand.model))
    first = 0
    for last in range(1, len(known) + 1):
        cv = known[first].demand.cv
        if last == len(known) or known[last].demand.cv != cv or last - first == _CHUNK:
            yield _GatheredTogether(known[first:last], cv)
            first = last


def _can_gain(one: Demand, types: BatchTypes) -> bool:
    """Whether batches that nearly always gather in time cost more a request than the cheapest."""
    rows = np.arange(1.0, types.ms.shape[1] + 1.0)
    arrive = (one.slo_ms - types.ms) * one.rows_per_s / 1000.0
    each = types.ms * types.worth[:, None] / rows
    gathers = arrive >= rows + _SURELY * one.cv * rows**0.5
    least = each.min(initial=np.inf, where=types.ms <= one.slo_ms)
    return bool(each.min(initial=np.inf, where=gathers) > (1.0 + _LITTLE) * least)


@dataclass(frozen=True, slots=True)
class _KindsOfRun:
    """Runs by (model, kind, requests from 1): how likely each is, and its alphas."""

    likely: Floats
    alpha: Floats


class _GatheredTogether:
    """Some models of one cv: arrays by (model, type, rows), and bounds for several beta, theta."""

    def __init__(self, models: Sequence[_Gathered], cv: float) -> None:
        self.demand = [one.demand for one in models]
        self._longest = max(one.longest for one in models)
        kinds = max(len(one.types.worth) for one in models)
        shape = (len(models), kinds, self._longest)
        self._cost, self._window = np.full(shape, np.inf), np.full(shape, -1.0)
        self._most = np.ones(len(models), int)
        for place, one in enumerate(models):
            ms = one.types.ms[:, : self._longest]
            here = (place, slice(len(ms)), slice(ms.shape[1]))
            fits = ms <= one.demand.slo_ms
            self._cost[here] = np.where(fits, ms * one.types.worth[:, None], np.inf)
            self._window[here] = np.where(fits, (one.demand.slo_ms - ms) / one.gap_ms, -1.0)
            self._most[place] = int((one.types.ms <= one.demand.slo_ms).any(axis=0).sum())
        self._rows = np.arange(1.0, self._longest + 1.0)
        sums = gap_sums(cv, _MOST_GAPS * (1 + self._longest // _MOST_GAPS), _MOST_IN_WINDOW)
        self._fit = self._allowed(sums)
        # P(m gaps fit) falls ever faster with m (it is log-concave): longer runs are a geometric
        # series at most. z is kept where that converges.
        last, widest = np.full(len(models), self._longest - 1.0), self._window[:, :, 0].max(axis=1)
        falls = sums.at_most(last + 1.0, widest) / np.maximum(sums.at_most(last, widest), _TINY)
        falls = np.clip(falls, 1e-9, 1.0 - 1e-9)
        self._most_log_z = np.log((1.0 + falls) / (2.0 * falls))
        self._longer = 2.0 + 4.0 / (self._longest * (1.0 - falls))
        self._given_up = np.array([1.0 - one.attainment for one in self.demand])
        # Where Jensen's loss, theta Var N / 2 E N^2, is what the choice of who is given up loses.
        held = self._fit.sum(axis=2).max(axis=1)
        chosen = self._given_up * (1.0 + np.log1p(1.0 / (self._given_up * held + 1e-9)))
        self._steep = held * (2.0 * chosen + _LITTLE) ** 0.5
        self._per_s = np.array([one.rows_per_s for one in self.demand])

    def _allowed(self, sums: GapSums) -> Floats:
        """P(a run of at least h is allowed): each type by itself, then with batches inside."""
        gaps = np.broadcast_to(self._rows - 1.0, self._window.shape)
        alone = sums.at_most(gaps, self._window)
        second = self._window[:, :, 1:2]
        around = sums.at_most(gaps, np.broadcast_to(second, self._window.shape))
        return np.concatenate([alone, np.where(self._rows >= 3, around, alone)], axis=1)

    def best(self) -> tuple[Floats, Floats]:
        """Accelerators that each model needs at least, and beta x attainment of the best bound."""
        least = (self._cost / self._rows).min(axis=(1, 2))
        found, beta = np.zeros(len(least)), np.zeros(len(least))
        for part in _ROW_PARTS:
            bound = self._bound(part * least, _THETAS[:1])
            beta = np.where(bound > found, part * least, beta)
            found = np.maximum(found, bound)
        found = np.maximum(found, self._bound(beta, _THETAS[1:]))
        return found, beta * (1.0 - self._given_up) / 1000.0

    def _bound(self, beta: Floats, thetas: Sequence[float]) -> Floats:
        """Accelerators by these beta, the best of several theta."""
        runs, scale = self._runs(beta)
        steep = self._steep / np.maximum(scale, _ROUNDING)  # any theta is valid
        batches = np.max([self._per_arrival(runs, theta * steep) for theta in thetas], axis=0)
        found: Floats = (beta * (1.0 - self._given_up) + batches) * self._per_s / 1000.0
        return found

    def _runs(self, beta: Floats) -> tuple[_KindsOfRun, Floats]:
        """The kinds of runs at this beta, the cheapest first, and the least alpha."""
        alone = (self._cost - beta[:, None, None] * self._rows).min(axis=2)
        least = alone.min(axis=1)
        kinds = np.concatenate([alone, alone + least[:, None]], axis=1)
        order = np.argsort(kinds, axis=1, kind="stable")
        around = (order >= alone.shape[1])[:, :, None]
        alpha = np.take_along_axis(kinds, order, axis=1)[:, :, None]
        fit = np.take_along_axis(self._fit, order[:, :, None], axis=1)
        # Runs with batches inside that one more of them would have to make longer end there, too.
        most = self._most[:, None, None]
        full = around & (self._rows >= 2 * most) & (self._rows % most == 0)
        ends = np.where(full, fit, fit - _shifted(fit, -1, 2))
        covered = _shifted(np.maximum.accumulate(fit, axis=1), 1, 1)
        likely = np.minimum(ends, np.maximum(0.0, fit - covered))
        likely[:, :, -1] = ends[:, :, -1] * self._longer[:, None]
        inside = np.maximum(0.0, np.ceil(self._rows / most) - 2.0)
        more = np.where(around, inside * least[:, None, None], 0.0)
        return _KindsOfRun(likely, alpha + more), least

    def _per_arrival(self, runs: _KindsOfRun, theta: Floats) -> Floats:
        """What alphas come to at least for each arrival, by the z that fulfils the condition."""
        weight = (runs.likely * np.exp(-theta[:, None, None] * runs.alpha)).sum(axis=1)
        given_up = self._given_up
        part = (given_up / (1.0 - given_up))[:, None]
        logs = np.log(np.maximum(weight, _TINY))
        both = logs + np.log1p(part * self._rows)
        # Newton's method from above; both sides are convex in ln z.
        log_z = (-both / self._rows).min(axis=1)
        for _ in range(_NEWTON):
            terms = np.exp(both + self._rows * log_z[:, None])
            total = terms.sum(axis=1)
            log_z -= np.log(total) * total / (terms * self._rows).sum(axis=1)
        # The logarithm of the sum rises at least as steeply as ln z: below 1 after this step.
        total = np.exp(both + self._rows * log_z[:, None]).sum(axis=1)
        log_z = np.minimum(log_z - np.maximum(0.0, np.log(total)) - _ROUNDING, self._most_log_z)
        lost = (part * np.exp(logs + self._rows * log_z[:, None]) * self._rows).sum(axis=1)
        gained = (1.0 - given_up) * log_z + given_up * np.log(np.maximum(lost, _TINY))
        found: Floats = np.maximum(0.0, gained / theta)
        return found


def _shifted(values: Floats, by: int, axis: int) -> Floats:
    """Moved along the axis, zeros for what is not known."""
    moved = np.roll(values, by, axis)
    edge = [slice(None)] * values.ndim
    edge[axis] = slice(0, by) if by > 0 else slice(by, None)
    moved[tuple(edge)] = 0.0
    return moved
