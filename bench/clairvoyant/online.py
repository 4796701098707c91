"""How good a scheduler can be that does not know the future: value iteration for one accelerator.

Perfect foresight is out of reach; this says how much of the distance to it is missing information
rather than a bad rule. What waits is summed up as how many there are and how long the oldest has
left, the others evenly behind it; arrivals are Poisson. A decision is how many of the oldest are
given up before as large a batch as then ends in time. Waiting with work at hand was tried and
gained nothing. It is played with the real deadlines, so it is a policy that could be run, not a
bound: with the summary exact it would be the optimum.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bench.clairvoyant.worlds import World

Floats = NDArray[np.float64]

#: Steps in which the time left is counted; the SLO is this many.
_STEPS: Final = 200
#: Later losses count less, by a factor e in so many SLOs; rounds of iteration; when it has settled.
_HORIZON: Final = 100.0
_ROUNDS: Final = 400
_SETTLED: Final = 1e-3
_NEVER: Final = 1e18


class Values(NamedTuple):
    """Losses to come, in requests. Times are in SLOs, ``rate`` in requests per SLO."""

    row: float
    fixed: float
    rate: float
    empty: Floats  #: (largest + 1,): after a batch of b that leaves nobody
    left: Floats  #: (largest + 1, most + 1, _STEPS + 1): after one that leaves m, the oldest r


def values(world: World, load: float) -> Values:
    """Iterate until the losses settle. Queues are cut at a little over twice the largest batch."""
    rate = load * (1.0 - world.fixed) / world.row
    most = int(2.2 * world.largest) + 4
    return Values(world.row, world.fixed, rate, *_iterated(world.row, world.fixed, rate, most))


def served(known: Values, ticks: Floats, load: float, ceiling: float) -> int:
    """How many of a trace end in time under the policy of least losses to come."""
    return int(_played(ticks / (load * ceiling), *known))


@njit(cache=True)
def _chances(mean: float, most: int) -> Any:
    """Poisson probabilities of 0 to ``most``; the last holds the rest."""
    chances = np.zeros(most + 1)
    chances[0] = np.exp(-mean)
    for count in range(1, most + 1):
        chances[count] = chances[count - 1] * mean / count
    chances[most] += max(0.0, 1.0 - chances.sum())
    return chances


@njit(cache=True)
def _iterated(row: float, fixed: float, rate: float, most: int) -> tuple[Any, Any]:
    largest = int((1.0 - fixed) / row + 1e-9)
    value = np.zeros((most + 1, _STEPS + 1))
    empty = np.zeros(largest + 1)
    left = np.zeros((largest + 1, most + 1, _STEPS + 1))
    for _ in range(_ROUNDS):
        idle = value[1, _STEPS] * rate / (rate + 1.0 / _HORIZON)
        for batch in range(1, largest + 1):
            run = fixed + row * batch
            empty[batch] = _after_all(value, rate, run, idle, most)
            _after_some(value, rate, run, most, left[batch])
        if _improved(value, row, fixed, most, idle, empty, left) < _SETTLED:
            break
    return empty, left


@njit(cache=True)
def _after_all(value: Any, rate: float, run: float, idle: float, most: int) -> float:
    """Expected losses after a batch that takes everyone: the first arrival is the next oldest."""
    step, steps = 1.0 / _STEPS, round(run * _STEPS)
    expected = np.exp(-rate * run) * idle
    for at in range(steps):
        first = np.exp(-rate * at * step) * (1.0 - np.exp(-rate * step))
        chances = _chances(rate * (steps - at - 0.5) * step, most - 1)
        expected += first * (chances * value[1:, _STEPS - steps + at]).sum()
    return float(np.exp(-run / _HORIZON) * expected)


@njit(cache=True)
def _after_some(value: Any, rate: float, run: float, most: int, left: Any) -> None:
    """Expected losses after a batch that leaves some, by how many and what their oldest has."""
    chances, discount = _chances(rate * run, most), np.exp(-run / _HORIZON)
    for count in range(1, most + 1):
        left[count, :] = 0.0
        for new in range(most + 1):
            left[count] += discount * chances[new] * value[min(most, count + new)]


@njit(cache=True)
def _improved(
    value: Any, row: float, fixed: float, most: int, idle: float, empty: Any, left: Any
) -> float:
    """The best decision for every state; the largest change of its losses."""
    change = 0.0
    for count in range(1, most + 1):
        for rest in range(_STEPS + 1):
            oldest = rest / _STEPS
            gap, best = (1.0 - oldest) / count, count + idle
            for dropped in range(count):
                batch = int((oldest + dropped * gap - fixed) / row + 1e-9)
                if batch < 1:
                    continue
                remain = count - dropped - batch
                if remain <= 0:
                    best = min(best, dropped + empty[count - dropped])
                    break
                next_oldest = oldest + (dropped + batch) * gap - fixed - row * batch
                place = max(0, int(next_oldest * _STEPS))
                best = min(best, dropped + left[batch, remain, place])
            change = max(change, abs(best - value[count, rest]))
            value[count, rest] = best
    return change


@njit(cache=True)
def _played(times: Any, row: float, fixed: float, rate: float, empty: Any, left: Any) -> int:
    """Requests of a trace that end in time."""
    first = waiting = in_time = 0
    now, count = 0.0, len(times)
    while first < count:
        now = max(now, times[first])
        while waiting < count and times[waiting] <= now:
            waiting += 1
        while first < waiting and times[first] + 1.0 - now < fixed + row - 1e-12:
            first += 1
        if first < waiting:
            dropped, batch = _decided(times[first:waiting], now, row, fixed, empty, left)
            now += fixed + row * batch
            first += dropped + batch
            in_time += batch
    return in_time


@njit(cache=True)
def _decided(
    waiting: Any, now: float, row: float, fixed: float, empty: Any, left: Any
) -> tuple[int, int]:
    """How many of the oldest are dropped, and how many run."""
    best, dropped, rows, count = _NEVER, 0, 0, len(waiting)
    for place in range(count):
        batch = min(count - place, int((waiting[place] + 1.0 - now - fixed) / row + 1e-9))
        if batch < 1:
            continue
        behind = count - place - batch
        if behind == 0:
            losses = place + empty[batch]
        else:
            rest = waiting[place + batch] + 1.0 - now - fixed - row * batch
            known = min(behind, left.shape[1] - 1)
            losses = place + left[batch, known, max(0, int(rest * _STEPS))]
        if losses < best - 1e-9:
            best, dropped, rows = losses, place, batch
        if behind == 0:
            break
    return dropped, rows
