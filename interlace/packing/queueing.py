"""How busy a partition may be while random arrivals still meet their SLO."""

from __future__ import annotations

from math import expm1
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_FLOOR: Final = 1e-9
#: What a further partition of the same model counts for, beside the first.
POOLING: Final = 0.5
_HALVINGS: Final = 50


def pooled(replicas: Floats, pooling: float = POOLING) -> Floats:
    """How many partitions of equal rate a model's one queue is as good as."""
    return 1.0 + pooling * (replicas - 1.0)


def required_decay(slack_ms: Floats, attainment: Floats) -> Floats:
    """The decay per ms that waiting work must have: ln(1 / (1 - attainment)) / slack."""
    odds = -np.log(np.maximum(1.0 - attainment, _FLOOR))
    decay: Floats = odds / np.maximum(slack_ms, _FLOOR)
    return decay


def busy_limit(work_ms: float, decay: float) -> float:
    """The utilisation, in 0..1, up to which the work that waits decays at ``decay`` per ms.

    ``work_ms`` is the mean work of an arrival, weighted by work and by cv^2. By Lundberg's bound
    more than x ms of work wait with a probability of at most exp(-decay x), where for Poisson
    arrivals of equal work w the decay solves utilisation = decay w / (exp(decay w) - 1).
    ``required_decay`` says which decay keeps requests within their slack.
    """
    steps = min(decay * work_ms, 500.0)
    return steps / expm1(steps) if steps > _FLOOR else 1.0


def mean_wait_ms(work_ms: float, busy: float) -> float:
    """The mean of the exponential that bounds the work that waits: 1 / decay of ``busy_limit``.

    Infinite at a utilisation of 1 and above.
    """
    if busy >= 1.0:
        return float("inf")
    if busy <= 0.0:
        return 0.0
    low, high = 0.0, 1.0
    while busy_limit(high, 1.0) > busy:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if busy_limit(middle, 1.0) > busy else (low, middle)
    return work_ms / high
