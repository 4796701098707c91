"""How far a simulated run is from the live one: goodput, median and p99 latency."""

from dataclasses import dataclass

import numpy as np

from interlace.core.request import Outcome
from interlace.sim.record import RunRecord

_ANSWERED = (Outcome.OK, Outcome.LATE)


@dataclass(frozen=True, slots=True)
class Figures:
    """Replies in time per second, and latency of what was answered, over all models."""

    goodput_rps: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Simulated over live, less 1; the sign says which way the simulator errs."""

    goodput: float
    p50: float
    p99: float


def figures(record: RunRecord) -> Figures:
    """A run's figures. Latencies are of answered requests; too few answers give NaN."""
    seconds = (record.until_ms - record.from_ms) / 1000.0
    in_time = sum(one.outcome is Outcome.OK for one in record.served)
    taken_ms = [o.answered_ms - o.arrived_ms for o in record.served if o.outcome in _ANSWERED]
    if not taken_ms:
        return Figures(in_time / seconds, float("nan"), float("nan"))
    p50_ms, p99_ms = np.percentile(taken_ms, (50, 99))
    return Figures(in_time / seconds, float(p50_ms), float(p99_ms))


def gap(live: Figures, simulated: Figures) -> Gap:
    """The relative errors of the three figures."""
    return Gap(
        simulated.goodput_rps / live.goodput_rps - 1,
        simulated.p50_ms / live.p50_ms - 1,
        simulated.p99_ms / live.p99_ms - 1,
    )
