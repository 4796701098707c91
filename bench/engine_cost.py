"""Cost of the engine.

A seeded Poisson trace in virtual time, for several numbers of models on eight accelerators of two
partitions each. Per request: machine time of the whole run, with the simulated devices and the
clock. Per event: machine time of the engine alone, from an event to its commands; mean, median and
99th percentile.

``--memory 0.03``: two partitions of one accelerator with memory for so many of the models' weights,
``--rate`` requests a second by Zipf's law over all of them, so that most are cold.
"""

import gc
import json
import statistics
import time
from typing import Annotated

import numpy as np

from bench.cold.playing import poisson, zipf_parts
from bench.harness import Report, main
from bench.sim_speed import engine_s, scenario
from interlace.core.hardware import Fleet, Gpu
from interlace.core.loading import HostLinks
from interlace.core.messages import Event
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, LayerProfile, Profile
from interlace.engine.engine import Engine
from interlace.policy.catalog import resolve
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation

#: Layers of a model that comes and goes: bytes, and ms to copy, to run, to run from the host.
_LAYERS = tuple(LayerProfile(f"l{n}", 100_000, 0.05, 0.2, 0.3) for n in range(8))
_SKEW, _SLO_MS, _BATCH = 0.9, 1000.0, 8


def cold_scenario(
    models: int, part: float, rate_rps: float, requests: int, seed: int = 0
) -> Simulation:
    """Every model in both partitions, and memory for ``part`` of their weights, of two at least."""
    names = [f"m{number:05}" for number in range(models)]
    rates = dict(zip(names, (rate_rps * one for one in zipf_parts(models, _SKEW)), strict=True))
    nbytes = sum(layer.weights_bytes for layer in _LAYERS)
    points = {
        (rows, share): LatencyPoint(ms, ms, ms, 1)
        for share in (50, 100)
        for rows, ms in ((1, 1.5), (2, 2.0), (4, 3.0), (_BATCH, 5.0))
    }
    profiles = dict.fromkeys(
        names, Profile("m", "digest", "test", nbytes, 0, points, layers=_LAYERS)
    )
    gpu = Gpu(
        "g0", "test", 2, 10**13, (50, 100), weights_bytes=int(nbytes * max(2, part * models)),
        links=HostLinks(takes_cores=True),
    )  # fmt: skip
    demand = tuple(Demand(name, rates[name], _SLO_MS, _BATCH) for name in names)
    slots = tuple(Slot(name, _BATCH, rates[name] / 2) for name in names)
    plan = Plan(tuple(Partition(f"p{number}", "g0", 50, slots) for number in range(2)))
    return Simulation(
        resolve("interlace"), Fleet((gpu,)), demand, profiles, profiles,
        poisson(rates, requests / rate_rps, seed), plan, epoch_ms=float("inf"),
    )  # fmt: skip


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


def engine_cost(
    *,
    requests: int = 20_000,
    reps: int = 5,
    load: float = 0.8,
    gpus: int = 8,
    memory: Annotated[float | None, "for that part of the models' weights"] = None,
    rate: Annotated[float, "requests a second, if --memory"] = 30.0,
    models: tuple[int, ...] = (1, 16, 100, 1000),
) -> Report:
    """Machine time of a request and of an event, by number of models."""
    rows = []
    for count in models:
        request_us, mean_us, p50_us, p99_us = [], [], [], []
        for seed in range(reps):
            if memory is None:
                one = scenario(count, gpus, load, requests, seed)
            else:
                one = cold_scenario(count, memory, rate, requests, seed)
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
        rows.append({"models": count, "load": load, "memory": memory, **figures})
        print(json.dumps(rows[-1]), flush=True)
    return Report(figures=rows)


if __name__ == "__main__":
    main(engine_cost)
