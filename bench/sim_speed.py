"""How many requests a second of machine time is played.

Machine time of the engine in virtual time, without set-up, against models, GPUs and load: one
varied at a time around 16 models on 8 GPUs at load 0.8. Where the engine is compiled,
`python -m bench.pure_python bench.sim_speed ...` measures its Python sources.
"""

import gc
import statistics
import time
from functools import partial
from typing import Annotated

from matplotlib.figure import Figure

from bench.harness import Report, main
from interlace.compiled import is_compiled
from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import merge_arrivals, poisson
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation

#: What a batch takes at half an accelerator: 2 ms, and half a millisecond a row.
FIXED_MS, ROW_MS, BATCH = 2.0, 0.5, 16
SLO_MS = 40.0
VARIED = {
    "models": (1, 4, 16, 64, 256, 1000),
    "gpus": (1, 2, 4, 8, 16, 32),
    "load": (0.2, 0.4, 0.6, 0.8, 1.0, 1.2),
}
USUAL = {"models": 16, "gpus": 8, "load": 0.8}


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
    arrivals = merge_arrivals({name: poisson(rate_rps) for name in names}, seconds, seed)
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


def measured(where: dict[str, float], requests: int, reps: int) -> dict[str, float]:
    """Requests per machine second: least, median, most of the repetitions."""
    rates = []
    for seed in range(reps):
        one = scenario(int(where["models"]), int(where["gpus"]), where["load"], requests, seed)
        rates.append(len(one.arrivals) / engine_s(one))
    return {**where, "least": min(rates), "median": statistics.median(rates), "most": max(rates)}


def sim_speed(
    *,
    reps: int = 3,
    requests: Annotated[int, "of each run"] = 30_000,
    varied: Annotated[tuple[str, ...], f"of {', '.join(VARIED)}"] = tuple(VARIED),
) -> Report:
    """Requests per second of machine time, by what is varied."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in varied}
    for name, points in results.items():
        for value in VARIED[name]:
            points.append(measured({**USUAL, name: value}, requests, reps))
            print(name, {key: round(value, 1) for key, value in points[-1].items()}, flush=True)
    engine = "compiled" if is_compiled() else "pure Python"
    figures = {"engine": engine, "requests_per_machine_second": results}
    return Report((), partial(_draw, results), (13.0, 4.0), figures=figures)


def _draw(results: dict[str, list[dict[str, float]]], figure: Figure) -> None:
    axes = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axis, (varied, points) in zip(axes, results.items(), strict=True):
        axis.plot([p[varied] for p in points], [1e6 / p["median"] for p in points], "o-")
        axis.set_xlabel({"load": "load, of full batches' throughput"}.get(varied, varied))
        axis.set_yscale("log")
        if varied != "load":
            axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("µs of machine time per request")


if __name__ == "__main__":
    main(sim_speed)
