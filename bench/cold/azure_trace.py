"""Azure's functions as requests of many models: the public sample, or a day drawn from it.

The trace of 2019 has tens of thousands of functions a day; public here is a sample of 500 over
eight hours. A *day* is as many functions drawn from the sample, each begun at a minute of its own
(which spreads what happens at once). As DeepPlan's released client does it, counts are scaled to a
rate and cut to whole calls, functions are sorted by volume and the i-th is model i mod n, and calls
of a minute are anywhere in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from interlace.sim.arrivals import Arrivals, Workload, merge_arrivals
from interlace.sim.workload.files import azure_counts
from interlace.sim.workload.mapping import folded

TRACE: Final = "../shared/data/traces/azure-functions-2019-sample500.csv"
#: Functions of the first day of the whole trace.
DAY: Final = 46_413
#: Steps in which the scale is found with which cut counts have the rate.
_STEPS: Final = 50
_MINUTE_S: Final = 60.0

Counts = npt.NDArray[np.int64]


def azure_arrivals(
    path: Path,
    models: Sequence[str],
    rate_rps: float,
    minutes: int,
    functions: int = 0,
    seed: int = 0,
) -> Arrivals:
    """So many minutes of the sample without its largest function, or of a day of ``functions``.

    Raises:
        SystemExit: there is no such file.
    """
    if not path.exists():
        raise SystemExit(f"{path}: no such file; --trace names calls by function and minute")
    counts = np.array(list(azure_counts(path).values()), dtype=np.int64)
    if functions:
        drawn = np.random.default_rng(seed)
        rows, starts = (drawn.integers(0, most, functions) for most in counts.shape)
        # The largest function, 63 % of the sample's calls, is one of tens of thousands here.
        columns = (starts[:, None] + np.arange(minutes)) % counts.shape[1]
        counts = counts[rows[:, None], columns]
    else:
        counts = np.delete(counts, counts.sum(axis=1).argmax(), axis=0)[:, :minutes]
    cut = _cut(counts, rate_rps)
    by_name = {str(index): tuple(row.tolist()) for index, row in enumerate(cut) if row.any()}
    left_rps = int(cut.sum()) / (minutes * _MINUTE_S)
    workloads: dict[str, Workload] = dict(folded(by_name, models, left_rps))
    return merge_arrivals(workloads, minutes * _MINUTE_S, seed)


def _cut(counts: Counts, rate_rps: float) -> Counts:
    """Whole calls at the rate: fractions of a count are dropped."""
    wanted = rate_rps * _MINUTE_S * counts.shape[1]
    values, times = np.unique(counts, return_counts=True)
    low, high = wanted / counts.sum(), 1.0 + wanted  # one count alone would do with the second
    for _ in range(_STEPS):
        middle = (low + high) / 2
        enough = np.floor(values * middle) @ times >= wanted
        low, high = (low, middle) if enough else (middle, high)
    found: Counts = np.floor(counts * high).astype(np.int64)
    return found
