"""Make the table of `interlace.packing.host_capacity`: the highest rate that one host keeps.

Every cell is played request by request (`bench.planning.one_partition`) on the same arrivals, at
rates between which the part that is late is interpolated. `python -m bench.planning.capacity_table`
writes the table; it takes some ten minutes on two idle cores. Make it again when dispatcher or
admission change.
"""

from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Annotated, Final

import numpy as np

from bench.harness import Report, Table, main
from bench.planning.one_partition import Floats, played
from interlace.packing.host_capacity import (
    BEHIND_ONE,
    COUNTED,
    CVS,
    LIMITS,
    LONGEST,
    LOSSES,
    ROW_PARTS,
    TABLE,
    WAITS,
    fluid,
    waiting_row,
)

_REQUESTS: Final = 40_000  #: and more where they come in bursts
_DRAWN: Final = 32  #: gaps that each gap is the mean of, next to it in size
#: In bursts one draw differs from another: those that of twenty are nearest to their mean.
_SEEDS: Final = {3.2: 19, 4.0: 14}
_PROBES: Final = 7  #: for each loss
_EXACTLY: Final = 1.006
_NEAR: Final = 0.01  #: parts late that are told apart by less are one
_ROUNDING: Final = 1e-7
_NOTHING: Final = 1e-6
_FEWEST: Final = 1e-4  #: rows in an L(1): at less, what is late is drawn on
_LOWEST_LOG: Final = -40.0


def capacity_table(*, processes: Annotated[int, "side by side"] = 2) -> Report:
    """Play all cells and write them; shows the column of Poisson, 99 %, largest limit."""
    with ProcessPoolExecutor(processes) as pool:
        found = np.stack(list(pool.map(of_cv, CVS[::-1]))[::-1], axis=3)  # the longest first
    np.save(TABLE, found.astype(np.float16))
    shown = np.exp(found[:, :, -1, CVS.index(1.0), LOSSES.index(0.01)])
    cells = [(wait, *row) for wait, row in zip(WAITS, shown.round(3).tolist(), strict=True)]
    return Report(tables=[Table(("rows that may wait", *map(str, ROW_PARTS)), cells)])


def of_cv(cv: float) -> Floats:
    """All cells of one cv: waits x row parts x limits x losses, as logarithms over ``fluid``."""
    gaps = gaps_of(cv)
    found = np.zeros((len(WAITS), len(ROW_PARTS), len(LIMITS), len(LOSSES)))
    for (i, wait), (j, row), (k, limit) in product(*map(enumerate, (WAITS, ROW_PARTS, LIMITS))):
        slo = slo_of(wait, row, limit)
        if j and limit == 1:  # no further row costs anything
            found[i, j, k] = found[i, 0, k]
        else:
            found[i, j, k] = cell(gaps, slo, row, int(limit), cv, found[i, j, k - 1] if k else None)
    for (i, wait), (j, row), (k, limit) in product(*map(enumerate, (WAITS, ROW_PARTS, LIMITS))):
        whole = fluid(np.array(slo_of(wait, row, limit)), np.array(row), np.array(limit))
        found[i, j, k] -= np.log(whole)
    return found


def slo_of(wait: float, row: float, limit: float) -> float:
    """The SLO in L(1) at a node of the table's first axis: the inverse of its ``waiting``."""
    each = float(waiting_row(np.array(row), np.array(limit, float)))
    counted = BEHIND_ONE + COUNTED * each
    if wait > COUNTED:
        part: float = (LONGEST / counted) ** (wait - COUNTED)
        return counted * part
    return BEHIND_ONE + wait * (each if wait > 0.0 else 1.0)


def gaps_of(cv: float) -> Floats:
    """Times of arrival at a rate of 1; gaps have the sizes that they should have, in any order."""
    count = int(_REQUESTS * max(1.0, cv) ** 1.5)
    shape = 1.0 / cv**2
    random = np.random.default_rng(_SEEDS.get(cv, 1))
    gaps = np.sort(random.gamma(shape, 1.0 / shape, count * _DRAWN)).reshape(count, _DRAWN)
    return np.cumsum(random.permutation(gaps.mean(axis=1)))


def cell(
    times: Floats, slo: float, row: float, limit: int, cv: float, guess: Floats | None = None
) -> Floats:
    """Logarithms of the highest rates, in rows per L(1), at each of ``LOSSES``.

    ``guess`` is about what they may be: where the search begins. At rates too low to be played,
    late is who comes within a short time of another: with gamma gaps, a part that goes with the
    rate to the power of 1 / cv^2.
    """
    latency = 1.0 - row + row * np.arange(limit + 1)
    late: dict[float, float] = {}

    def probe(rate: float) -> None:
        which = np.zeros(len(times), np.int64)
        hosted = latency[None, :], np.array([slo + _ROUNDING]), np.array([limit])
        in_time = played(times / rate, which, *hosted, np.array([rate]))
        late[rate] = max(_NOTHING, 1.0 - int(in_time[0]) / len(times))

    most = 1.3 * limit / latency[limit]
    probe(_FEWEST)
    probe(most)
    for index, loss in enumerate(LOSSES):
        if guess is not None and guess[index] > np.log(_FEWEST):
            probe(float(min(np.exp(guess[index]), most)))
        for _ in range(_PROBES):
            rates = sorted(late)
            above = next((i for i, rate in enumerate(rates) if late[rate] > loss), 0)
            low, high = rates[max(above - 1, 0)], rates[above]
            told = any(abs(part / loss - 1.0) < _NEAR for part in late.values())
            if above == 0 or high < low * _EXACTLY or told:
                break
            part = np.log(loss / late[low]) / np.log(late[high] / late[low])
            probe(float(low * (high / low) ** np.clip(part, 0.1, 0.9)))
    rates = sorted(late)
    lates = np.log(np.maximum.accumulate([late[rate] for rate in rates]))
    drawn_on = cv**2 * np.minimum(np.log(LOSSES) - lates[0], 0.0)
    found: Floats = np.interp(np.log(LOSSES), lates, np.log(rates)) + drawn_on
    return np.maximum(found, _LOWEST_LOG)


if __name__ == "__main__":
    main(capacity_table)
