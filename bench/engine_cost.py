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
import time
from statistics import mean
from typing import Annotated

import numpy as np

from bench.cold.playing import poisson, zipf_parts
from bench.harness import Report, main, spread
from interlace.core.hardware import Fleet, Gpu
from interlace.core.loading import HostLinks
from interlace.core.messages import Event
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, LayerProfile, Profile
from interlace.engine.engine import Engine
from interlace.policy.catalog import resolve
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation

#: What a batch takes at half an accelerator, where all weights stay: ms, and ms a row.
FIXED_MS, ROW_MS, BATCH = 2.0, 0.5, 16
SLO_MS = 40.0
#: Layers of a model that comes and goes: bytes, and ms to copy, to run, to run from the host.
_LAYERS = tuple(LayerProfile(f"l{n}", 100_000, 0.05, 0.2, 0.3) for n in range(8))
_SKEW, _COLD_SLO_MS, _COLD_BATCH = 0.9, 1000.0, 8


def scenario(models: int, gpus: int, load: float, requests: int, seed: int = 0) -> Simulation:
    """Two partitions a GPU; models in turn over all of them, each in one at least.

    ``load`` is against what full batches serve.
    """
    count = 2 * gpus
    capacity_rps = count * BATCH * 1000.0 / (FIXED_MS + BATCH * ROW_MS)
    names = [f"m{i:04}" for i in range(models)]
    rate_rps = load * capacity_rps / models
    homes: list[list[str]] = [[] for _ in range(count)]
    for at in range(max(models, count)):
        homes[at % count].append(names[at % models])
    plan = Plan(
        tuple(
            Partition(f"p{i:04}", f"g{i // 2:03}", 50, tuple(Slot(m, BATCH, rate_rps) for m in own))
            for i, own in enumerate(homes)
        )
    )
    demand = tuple(Demand(name, rate_rps, SLO_MS, BATCH) for name in names)
    profiles = {name: _profile(name) for name in names}
    fleet = Fleet(tuple(Gpu(f"g{i:03}", "test", 2, 10**12, (50, 100)) for i in range(gpus)))
    seconds = requests / (rate_rps * models)
    arrivals = poisson(dict.fromkeys(names, rate_rps), seconds, seed)
    row = resolve("interlace")
    return Simulation(row, fleet, demand, profiles, profiles, arrivals, plan, epoch_ms=float("inf"))


def _profile(name: str) -> Profile:
    points = {}
    for batch in (1, 2, 4, 8, 16):
        ms = FIXED_MS + batch * ROW_MS
        points[(batch, 50)] = LatencyPoint(ms, ms, ms, 10)
        points[(batch, 100)] = LatencyPoint(0.6 * ms, 0.6 * ms, 0.6 * ms, 10)
    return Profile(name, "digest", "test", 1_000, 10, points, load_ms=5.0)


def engine_s(one: Simulation) -> float:
    """Machine seconds of the run from when everything is loaded; the trace's last 199 of 200 parts.

    What the first part costs is taken to be what the others do: the clock is read where the run
    reports its progress, for nothing inside a compiled module can be replaced to read it.
    """
    at_s: list[float] = []
    gc.collect()
    simulate(one, on_progress=lambda part: at_s.append(time.process_time()))
    return (at_s[-1] - at_s[0]) * len(at_s) / (len(at_s) - 1)


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
        for rows, ms in ((1, 1.5), (2, 2.0), (4, 3.0), (_COLD_BATCH, 5.0))
    }
    profiles = dict.fromkeys(
        names, Profile("m", "digest", "test", nbytes, 0, points, layers=_LAYERS)
    )
    gpu = Gpu(
        "g0", "test", 2, 10**13, (50, 100), weights_bytes=int(nbytes * max(2, part * models)),
        links=HostLinks(takes_cores=True),
    )  # fmt: skip
    demand = tuple(Demand(name, rates[name], _COLD_SLO_MS, _COLD_BATCH) for name in names)
    slots = tuple(Slot(name, _COLD_BATCH, rates[name] / 2) for name in names)
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
    found = spread(values)
    assert found is not None
    middle, least, most = (round(one, 2) for one in found[:3])
    return {"min": least, "median": middle, "max": most}


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
            mean_us.append(mean(spent_us))
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
