"""A trace's functions as the requests of a few models, as published systems map them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from interlace.sim.arrivals import Times
from interlace.sim.workload.recorded import BinnedCounts, RefittedGamma

#: Calls by function and minute.
Counts = npt.NDArray[np.int64]

#: Fewer gaps than this say nothing about their variation: taken for Poisson.
_GAPS = 3
_LEAST_CV = 0.05


def folded(counts: Counts, parts: int, rate_rps: float, bin_s: float = 60.0) -> list[BinnedCounts]:
    """Functions (rows) onto parts as DeepPlan maps them: by volume, the i-th to part i mod n.

    Every count is multiplied so that all parts together get ``rate_rps`` on average over the
    trace. (Its released code drops the fraction of each count; here the mean holds.)
    """
    by_volume = np.argsort(-counts.sum(axis=1), kind="stable")
    sums = [counts[by_volume[part::parts]].sum(axis=0) for part in range(parts)]
    total = int(counts.sum())
    scale = rate_rps * counts.shape[1] * bin_s / total if total else 0.0
    return [BinnedCounts(tuple(one.tolist()), bin_s, scale) for one in sums]


def drawn_day(counts: Counts, functions: int) -> Counts:
    """So many functions drawn from a sample, each begun at a minute of its own; always the same.

    A sample of a few hundred functions has neither a cloud's many, nor their evenness: what happens
    at once in it is spread over the day.
    """
    drawn = np.random.default_rng(0)
    rows, starts = (drawn.integers(0, most, functions) for most in counts.shape)
    columns = (starts[:, None] + np.arange(counts.shape[1])) % counts.shape[1]
    found: Counts = counts[rows[:, None], columns]
    return found


def merged(times_ms: Mapping[str, Times], models: Sequence[str]) -> Mapping[str, Times]:
    """Functions onto models in turn, the i-th to model i mod n; ascending times."""
    parts: dict[str, list[Times]] = {model: [np.empty(0)] for model in models}
    for index, times in enumerate(times_ms.values()):
        parts[models[index % len(models)]].append(times)
    return {model: np.sort(np.concatenate(found)) for model, found in parts.items()}


def refitted(
    times_ms: Mapping[str, Times],
    models: Sequence[str],
    window_s: float,
    rate_scale: float = 1.0,
    cv_scale: float = 1.0,
) -> Mapping[str, RefittedGamma]:
    """Functions onto models as AlpaServe maps them: in turn, each window refitted by a Gamma.

    The rate and the coefficient of variation of every window are kept, times the two scales.
    """
    return {
        model: RefittedGamma(tuple(_windows(times, window_s, rate_scale, cv_scale)), window_s)
        for model, times in merged(times_ms, models).items()
    }


def _windows(
    times: Times, window_s: float, rate_scale: float, cv_scale: float
) -> Iterator[tuple[float, float]]:
    """Rate and variation of each window of the merged arrivals."""
    if not len(times):
        return
    for index in range(int(times[-1] / 1000.0 / window_s) + 1):
        low, high = np.searchsorted(times, [index * window_s * 1e3, (index + 1) * window_s * 1e3])
        gaps = np.diff(times[low:high])
        mean_ms = float(gaps.mean()) if len(gaps) >= _GAPS else 0.0
        cv = float(gaps.std()) / mean_ms if mean_ms > 0 else 1.0
        yield float(high - low) / window_s * rate_scale, max(_LEAST_CV, cv * cv_scale)
