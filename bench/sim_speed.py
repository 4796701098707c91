"""How many requests a second of machine time is played: `python -m bench.sim_speed --out DIR`.

The engine in virtual time (`sim.run`) and the compiled simulator (`sim.fast`) play equal scenarios;
machine seconds of the playing, set-up and compilation apart. Cost is drawn against models, GPUs and
load, one varied at a time around 16 models on 8 GPUs at load 0.8.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.policy.catalog import resolve
from interlace.runtime.observe import Observer
from interlace.sim.arrivals import merge_arrivals
from interlace.sim.fast.build import stand
from interlace.sim.fast.run import played
from interlace.sim.run import simulate, warmed
from interlace.sim.scenario import Simulation
from interlace.sim.workload.renewal import poisson

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
    """Machine seconds of the engine's run, from when everything is loaded."""
    began_s: list[float] = []

    def timed(scenario: Simulation, observers: Sequence[Observer]) -> object:
        ready = warmed(scenario, observers)
        gc.collect()
        began_s.append(time.process_time())
        return ready

    with mock.patch("interlace.sim.run.warmed", timed):
        simulate(one)
    return time.process_time() - began_s[0]


def compiled_s(one: Simulation) -> float:
    """Machine seconds of the compiled run, without its set-up."""
    standing = stand(one)
    return _timed(lambda: played(one, standing))


def _timed(call: Callable[[], object]) -> float:
    gc.collect()
    started_s = time.process_time()
    call()
    return time.process_time() - started_s


def measured(
    cost_s: Callable[[Simulation], float], where: dict[str, float], requests: int, reps: int
) -> dict[str, float]:
    """Requests per machine second: least, median, most of the repetitions."""
    rates = []
    for seed in range(reps):
        one = scenario(int(where["models"]), int(where["gpus"]), where["load"], requests, seed)
        rates.append(len(one.arrivals) / cost_s(one))
    return {**where, "least": min(rates), "median": statistics.median(rates), "most": max(rates)}


def _draw(results: dict[str, dict[str, list[dict[str, float]]]], path: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), sharey=True)
    for axis, varied in zip(axes, VARIED, strict=True):
        for name, of_path in results.items():
            points = of_path[varied]
            axis.plot(
                [p[varied] for p in points], [1e6 / p["median"] for p in points], "o-", label=name
            )
        axis.set_xlabel({"load": "load, of full batches' throughput"}.get(varied, varied))
        axis.set_yscale("log")
        if varied != "load":
            axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("µs of machine time per request")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--requests", type=int, default=10_000, help="of an engine's run")
    asked = parser.parse_args()
    first_s = _timed(lambda: played(scenario(2, 1, 0.5, 100)))
    paths = {
        "engine": (engine_s, asked.requests),
        "compiled": (compiled_s, 100 * asked.requests),
    }
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name, (cost_s, requests) in paths.items():
        results[name] = {}
        for varied, values in VARIED.items():
            results[name][varied] = [
                measured(cost_s, {**USUAL, varied: value}, requests, asked.reps) for value in values
            ]
            for point in results[name][varied]:
                print(name, varied, {key: round(value, 1) for key, value in point.items()})
    asked.out.mkdir(parents=True, exist_ok=True)
    about = {
        "command": f"python -m bench.sim_speed --out DIR --reps {asked.reps} "
        f"--requests {asked.requests}",
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version()},
        "first_compiled_run_s": first_s,
    }
    text = json.dumps({**about, "requests_per_machine_second": results}, indent=1)
    (asked.out / "speed.json").write_text(text + "\n")
    _draw(results, asked.out / "speed.svg")


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")


if __name__ == "__main__":
    main()
