"""Cost of the engine: `python -m bench.engine_cost`.

A seeded Poisson trace in virtual time, for several numbers of models on eight accelerators of two
partitions each. Per request: machine time of the whole run, with the simulated devices and the
clock. Per event: machine time of the engine alone, from an event to its commands; mean, median and
99th percentile.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time

import numpy as np

from bench.sim_speed import engine_s, scenario
from interlace.core.messages import Event
from interlace.engine.engine import Engine
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation


def events_us(one: Simulation) -> list[float]:
    """Machine time of every event once the trace has begun, in microseconds.

    The events of a run are kept, and given to another engine: as a log is replayed.
    """
    kept: list[tuple[float, Event]] = []
    simulate(one, [lambda now_ms, event, commands: kept.append((now_ms, event))])
    engine, spent_us = Engine(one.fleet, one.system), []
    gc.collect()
    for now_ms, event in kept:
        began_ns = time.perf_counter_ns()
        engine.handle(event, now_ms)
        if now_ms > one.warm_ms:
            spent_us.append((time.perf_counter_ns() - began_ns) / 1e3)
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
        request_us, mean_us, p50_us, p99_us = [], [], [], []
        for seed in range(asked.reps):
            one = scenario(models, asked.gpus, asked.load, asked.requests, seed)
            request_us.append(engine_s(one) / len(one.arrivals) * 1e6)
            middle_us, late_us = np.percentile(spent_us := events_us(one), [50, 99])
            mean_us.append(statistics.mean(spent_us))
            p50_us.append(float(middle_us))
            p99_us.append(float(late_us))
        figures = {
            "us_per_request": _spread(request_us),
            "requests_per_s": _spread([1e6 / us for us in request_us]),
            "event_mean_us": _spread(mean_us),
            "event_p50_us": _spread(p50_us),
            "event_p99_us": _spread(p99_us),
        }
        print(json.dumps({"models": models, "gpus": asked.gpus, "load": asked.load, **figures}))


if __name__ == "__main__":
    main()
