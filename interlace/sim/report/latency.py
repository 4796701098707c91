"""Latency quantiles and their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from interlace.core.request import Outcome
from interlace.sim.record import ServedRequest

#: Outcomes that have a latency: the model's answer came, in time or not.
ANSWERED: Final = (Outcome.OK, Outcome.LATE)


@dataclass(frozen=True, slots=True)
class Latency:
    """Of answered requests, from arrival to answer, in ms; NaN if nothing was answered.

    ``queue_ms`` and ``compute_ms`` are means of the time before and after the batch began.
    """

    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    queue_ms: float
    compute_ms: float


def latency(served: Sequence[ServedRequest]) -> Latency:
    """Quantiles over the answered ones among these; the others have no latency."""
    answered = [one for one in served if one.outcome in ANSWERED]
    if not answered:
        return Latency(*[float("nan")] * 6)
    taken = np.array([one.answered_ms - one.arrived_ms for one in answered])
    queued = np.array([one.started_ms - one.arrived_ms for one in answered])
    p50, p95, p99, p999 = np.percentile(taken, (50, 95, 99, 99.9)).tolist()
    waited = float(np.mean(queued))
    return Latency(p50, p95, p99, p999, waited, float(np.mean(taken)) - waited)
