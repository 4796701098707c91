"""The clairvoyant optimum of one accelerator and one model, by dynamic programming."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

_NEVER = 1e18


@njit(cache=True)
def fewest_drops(
    times_ms: NDArray[np.float64], row_ms: float, fixed_ms: float, slo_ms: float, most: int
) -> int:
    """The fewest requests that must be given up so that all others end in time; ``most`` + 1 if
    more than ``most``.

    A batch of b takes ``fixed_ms`` + b * ``row_ms``, one at a time, requests in order of arrival,
    which loses nothing with one SLO. What is given up before a batch may as well be the oldest: a
    batch without its head has a later deadline and no later start. So the state is how many
    requests are dealt with and how many of them were given up, its value the earliest moment at
    which the accelerator is free. O(n * most * largest batch).
    """
    count = len(times_ms)
    largest = int((slo_ms - fixed_ms) / row_ms + 1e-9)
    free_ms = np.full((count + 1, most + 1), _NEVER)
    free_ms[0, 0] = 0.0
    for done in range(count):
        for drops in range(most + 1):
            at_ms = free_ms[done, drops]
            if at_ms >= _NEVER:
                continue
            if drops < most:
                free_ms[done + 1, drops + 1] = min(free_ms[done + 1, drops + 1], at_ms)
            for batch in range(1, min(largest, count - done) + 1):
                start_ms = max(at_ms, times_ms[done + batch - 1])
                end_ms = start_ms + fixed_ms + batch * row_ms
                if end_ms > times_ms[done] + slo_ms:
                    break
                free_ms[done + batch, drops] = min(free_ms[done + batch, drops], end_ms)
    for drops in range(most + 1):
        if free_ms[count, drops] < _NEVER:
            return drops
    return most + 1
