"""Make the table of `interlace.packing.host_capacity`: the highest rate that one host keeps.

Every cell is played request by request (`bench.planning.one_partition`) on the same arrivals, at
rates between which the part that is late is interpolated. `python -m bench.planning.capacity_table`
writes the table; it takes some ten minutes on two cores. Make it again when dispatcher or admission
change.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Annotated, Final

import numpy as np

from bench.harness import Report, Table, main
from bench.planning.one_partition import Floats, played
from interlace.packing.host_capacity import CVS, LIMITS, LOSSES, ROW_PARTS, SLOS, TABLE, fluid

_REQUESTS: Final = 40_000  #: and more where they come in bursts
_PROBES: Final = 7  #: for each loss
_EXACTLY: Final = 1.006
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
    cells = [(slo, *row) for slo, row in zip(SLOS, shown.round(3).tolist(), strict=True)]
    return Report(tables=[Table(("SLO / L(1)", *map(str, ROW_PARTS)), cells)])


def of_cv(cv: float) -> Floats:
    """All cells of one cv: SLOs x row parts x limits x losses, as logarithms over ``fluid``."""
    gaps = gaps_of(cv)
    found = np.zeros((len(SLOS), len(ROW_PARTS), len(LIMITS), len(LOSSES)))
    for (i, slo), (j, row) in ((s, r) for s in enumerate(SLOS) for r in enumerate(ROW_PARTS)):
        for k, limit in enumerate(LIMITS):
            known = k > 0 and 1.0 - row + row * LIMITS[k - 1] > slo
            rates = found[i, j, k - 1] if known else cell(gaps, slo, row, limit, cv)
            found[i, j, k] = rates
        found[i, j] -= np.log(fluid(np.array(slo), np.array(row), np.array(LIMITS)))[:, None]
    return found


def gaps_of(cv: float) -> Floats:
    """Times of arrival at a rate of 1."""
    count = int(_REQUESTS * max(1.0, cv))
    shape = 1.0 / cv**2
    return np.cumsum(np.random.default_rng(1).gamma(shape, 1.0 / shape, count))


def cell(times: Floats, slo: float, row: float, limit: int, cv: float) -> Floats:
    """Logarithms of the highest rates, in rows per L(1), at each of ``LOSSES``.

    At rates too low to be played, late is who comes within a short time of another: with gamma
    gaps, a part that goes with the rate to the power of 1 / cv^2.
    """
    latency = 1.0 - row + row * np.arange(limit + 1)
    late: dict[float, float] = {}

    def probe(rate: float) -> None:
        which = np.zeros(len(times), np.int64)
        hosted = latency[None, :], np.array([slo + _ROUNDING]), np.array([limit])
        in_time = played(times / rate, which, *hosted, np.array([rate]))
        late[rate] = max(_NOTHING, 1.0 - int(in_time[0]) / len(times))

    probe(_FEWEST)
    probe(1.3 * limit / latency[limit])
    for loss in LOSSES:
        for _ in range(_PROBES):
            rates = sorted(late)
            above = next((i for i, rate in enumerate(rates) if late[rate] > loss), 0)
            low, high = rates[max(above - 1, 0)], rates[above]
            if above == 0 or high < low * _EXACTLY:
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
