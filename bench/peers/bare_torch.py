"""The CNN without any server: calls a second by batch size, one thread, pinned to one core."""

import argparse
import json
import os
import time

import numpy as np

from bench.peers import models


def measure(batches: list[int], seconds: float) -> dict[str, dict[str, float]]:
    """Median latency in ms and rows per second by batch size."""
    run = models.load("cnn")
    figures = {}
    for batch in batches:
        x = np.random.default_rng(1).standard_normal((batch, *models.SHAPES["cnn"][0]), np.float32)
        times, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            begin = time.perf_counter()
            run(x)
            times.append(time.perf_counter() - begin)
        median = float(np.median(times))
        mean_rps = batch * len(times) / sum(times)
        figures[str(batch)] = {
            "p50_ms": round(median * 1e3, 3),
            "rps": round(mean_rps, 1),
            "p50_rps": round(batch / median, 1),
        }
    return figures


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    print(json.dumps(measure(args.batches, args.seconds), indent=1))


if __name__ == "__main__":
    main()
