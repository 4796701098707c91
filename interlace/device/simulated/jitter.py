"""How executions of one batch differ from each other."""

from __future__ import annotations

from math import log
from random import Random
from typing import Final

from interlace.core.profile import Profile, Profiles

#: Standard normal quantiles of 95 and 99 %.
_Q95: Final = 1.6449
_Q99: Final = 2.3263


class Jitter:
    """Lognormal factors of median 1, as wide as a profile's p95 and p99 lie above its medians.

    A profile gives one width, the mean over its points of the two quantiles' own: single points
    have too few samples to tell theirs apart. Equal seeds give equal factors in the order drawn.
    """

    def __init__(self, truth: Profiles, seed: str) -> None:
        self._truth = truth
        self._random = Random(seed)
        self._sigmas: dict[str, float] = {}

    def factor(self, model: str) -> float:
        """The next execution's time over the median's."""
        if model not in self._sigmas:
            self._sigmas[model] = sigma(self._truth[model])
        return self._random.lognormvariate(0.0, self._sigmas[model])


def sigma(profile: Profile) -> float:
    """The standard deviation of log(latency / median) that the quantiles of a profile mean."""
    widths = [
        max(0.0, log(ms / point.median_ms)) / quantile
        for point in profile.points.values()
        for ms, quantile in ((point.p95_ms, _Q95), (point.p99_ms, _Q99))
        if point.median_ms > 0 and ms > 0
    ]
    return sum(widths) / len(widths) if widths else 0.0
