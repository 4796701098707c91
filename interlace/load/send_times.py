"""When requests are meant to be sent, known before the first one is."""

from __future__ import annotations

import random
from enum import StrEnum


class ArrivalProcess(StrEnum):
    """How send times are drawn."""

    POISSON = "poisson"
    UNIFORM = "uniform"


def arrivals(kind: ArrivalProcess, rate_rps: float, seconds: float, seed: int) -> list[float]:
    """Ascending send times in seconds from the start, all before ``seconds``.

    ``poisson`` draws exponential gaps (independent callers); ``uniform`` spaces them evenly.
    """
    if kind is ArrivalProcess.UNIFORM:
        return [index / rate_rps for index in range(int(rate_rps * seconds))]
    chance = random.Random(seed)
    times: list[float] = []
    at_s = chance.expovariate(rate_rps)
    while at_s < seconds:
        times.append(at_s)
        at_s += chance.expovariate(rate_rps)
    return times
