"""A trace's functions as the requests of a few models, as published systems map them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from interlace.sim.arrivals import Times
from interlace.sim.workload.recorded import BinnedCounts, RefittedGamma

#: Fewer gaps than this say nothing about their variation: taken for Poisson.
_GAPS = 3
_LEAST_CV = 0.05


def folded(
    counts: Mapping[str, Sequence[int]], models: Sequence[str], rate_rps: float, bin_s: float = 60.0
) -> Mapping[str, BinnedCounts]:
    """Functions onto models as DeepPlan maps them: by volume, the i-th to model i mod n.

    Every count is multiplied so that all models together get ``rate_rps`` on average over the
    trace. (Its released code drops the fraction of each count; here the mean holds.)
    """
    by_volume = sorted(counts.values(), key=lambda one: -sum(one))
    bins = max((len(one) for one in by_volume), default=0)
    sums = {model: np.zeros(bins, dtype=int) for model in models}
    for index, one in enumerate(by_volume):
        sums[models[index % len(models)]] += np.array(one, dtype=int)
    total = sum(int(one.sum()) for one in sums.values())
    scale = rate_rps * bins * bin_s / total if total else 0.0
    return {
        model: BinnedCounts(tuple(int(c) for c in one), bin_s, scale) for model, one in sums.items()
    }


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
