"""What one request of each model costs without a server: ms on one core, by batch size."""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np

import models


def main() -> None:
    """Print {model: {batch: ms per request}} as JSON; run in this folder, by a peer's Python."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    models.limit_threads(1)
    costs = {}
    for sort in models.SORTS:
        run = models.load(sort.name, 1)
        costs[sort.name] = {
            str(batch): _median_ms(run, models.sample(sort, batch), args.seconds) / batch
            for batch in sorted({1, min(4, sort.max_batch), sort.max_batch})
        }
    print(json.dumps(costs))


def _median_ms(run: models.Run, arrays: list[models.Array], seconds: float) -> float:
    run(arrays)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        began = time.perf_counter()
        run(arrays)
        times.append(time.perf_counter() - began)
    return float(np.median(times)) * 1e3


if __name__ == "__main__":
    main()
