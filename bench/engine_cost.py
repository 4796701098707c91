"""Cost of the engine: `python -m bench.engine_cost`.

A seeded Poisson trace in virtual time, for several numbers of models on eight accelerators of two
partitions each. Per request: machine time of the whole run, with the simulated devices and the
clock. Per decision: machine time of asking the dispatcher about one accelerator, from the engine's
question (what is hopeless by now, what starts) to the commands; its median and 99th percentile.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterable
from unittest import mock

import numpy as np

from bench.sim_speed import engine_s, scenario
from interlace.core.messages import Command
from interlace.engine.request_scheduler import RequestScheduler
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation


def decisions_us(one: Simulation) -> list[float]:
    """Machine time of every decision once the trace has begun, in microseconds."""
    spent_us: list[float] = []
    plain = RequestScheduler.dispatch

    def timed(serving: RequestScheduler, gpus: Iterable[str], now_ms: float) -> list[Command]:
        commands: list[Command] = []
        for gpu in gpus:
            began_s = time.thread_time()
            commands += plain(serving, (gpu,), now_ms)
            if now_ms > one.warm_ms:
                spent_us.append((time.thread_time() - began_s) * 1e6)
        return commands

    gc.collect()
    with mock.patch.object(RequestScheduler, "dispatch", timed):
        simulate(one)
    return spent_us


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "min": round(min(values), 2),
        "median": round(statistics.median(values), 2),
        "max": round(max(values), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--models", type=int, nargs="+", default=[1, 16, 100, 1000])
    asked = parser.parse_args()
    for models in asked.models:
        request_us, p50_us, p99_us = [], [], []
        for seed in range(asked.reps):
            one = scenario(models, asked.gpus, asked.load, asked.requests, seed)
            request_us.append(engine_s(one) / len(one.arrivals) * 1e6)
            middle_us, late_us = np.percentile(decisions_us(one), [50, 99])
            p50_us.append(float(middle_us))
            p99_us.append(float(late_us))
        figures = {
            "us_per_request": _spread(request_us),
            "requests_per_s": _spread([1e6 / us for us in request_us]),
            "decision_p50_us": _spread(p50_us),
            "decision_p99_us": _spread(p99_us),
        }
        print(json.dumps({"models": models, "gpus": asked.gpus, "load": asked.load, **figures}))


if __name__ == "__main__":
    main()
