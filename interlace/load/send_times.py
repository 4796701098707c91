"""When calls are meant to be sent, known before the first one is."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import repeat
from typing import NamedTuple


class ArrivalProcess(StrEnum):
    """How send times are drawn."""

    POISSON = "poisson"
    UNIFORM = "uniform"


class Arrival(NamedTuple):
    """A call due ``due_s`` seconds after the start; ``tag`` says which of the calls."""

    due_s: float
    tag: int


def send_times(process: ArrivalProcess, rate_rps: float, seconds: float, seed: int) -> list[float]:
    """Ascending send times in seconds from the start, all before ``seconds``.

    ``poisson`` draws exponential gaps (independent callers); ``uniform`` spaces them evenly.
    """
    if process is ArrivalProcess.UNIFORM:
        return [index / rate_rps for index in range(int(rate_rps * seconds))]
    chance, at_s = random.Random(seed), 0.0
    times: list[float] = []
    while rate_rps > 0 and (at_s := at_s + chance.expovariate(rate_rps)) < seconds:
        times.append(at_s)
    return times


def merged(times_s: Sequence[Sequence[float]]) -> Iterator[Arrival]:
    """Ascending sequences of send times as one; the tag is the position of the sequence."""
    tagged = (zip(times, repeat(tag)) for tag, times in enumerate(times_s))
    return (Arrival(*one) for one in heapq.merge(*tagged))


def poisson(rates_rps: Sequence[float], seconds: float, seed: int) -> list[Arrival]:
    """Independent Poisson streams merged, one a rate; the tag is the rate's position."""
    process = ArrivalProcess.POISSON
    streams = enumerate(rates_rps)
    return list(merged([send_times(process, r, seconds, seed * 1009 + tag) for tag, r in streams]))
