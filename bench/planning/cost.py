"""What planning costs: time by models and accelerators, for rows of the catalog."""

import time
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np

from bench.harness import Report, Table, main
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.packing.bounds import lower_bound
from interlace.planning.capacity_plan import plan
from interlace.planning.scenario import Scenario
from interlace.policy.catalog import resolve

_BATCHES = (1, 2, 4, 8, 16, 32)


def cost(
    *,
    packers: Annotated[tuple[str, ...], "rows of the catalog"] = ("gpulet",),
    models: Annotated[tuple[int, ...], "how many"] = (10, 30, 100),
    gpus: Annotated[int, "accelerators; 0.64 a model if 0"] = 0,
    repeat: int = 5,
    tried: Annotated[bool, "as it is told: with the search by trials, if the row has one"] = False,
) -> Report:
    """Every planner on every number of models."""
    costs = []
    for packer in packers:
        for count in models:
            there = gpus or max(1, round(0.64 * count))
            costs.append(measure(packer, count, there, repeat, tried))
            print(f"{packer}, {count} models: {costs[-1].median_ms:.1f} ms", flush=True)
    heads = ("planner", "models", "GPUs", "best ms", "median ms", "used", "bound", "short")
    cells = [
        (one.packer, one.models, one.gpus, one.best_ms, one.median_ms, one.used, one.bound,
         one.unserved)
        for one in costs
    ]  # fmt: skip
    return Report(tables=[Table(heads, cells)], figures=[asdict(one) for one in costs])


@dataclass(frozen=True, slots=True)
class Cost:
    """One planner on one question: best and median time of some repetitions."""

    packer: str
    models: int
    gpus: int
    best_ms: float
    median_ms: float
    used: int
    unserved: int
    bound: float


def profile(name: str, random: np.random.Generator, gpu: Gpu) -> Profile:
    """A model with a knee: L(b, p) = fixed + row * b * max(1, width(b) / p)."""
    fixed_ms, row_ms = random.uniform(1.0, 6.0), random.uniform(0.1, 1.5)
    width = random.uniform(15.0, 60.0)
    points = {}
    for share in [s for s in gpu.shares_pct if s % 10 == 0] or gpu.shares_pct:
        for batch in _BATCHES:
            slow = max(1.0, width * (1.0 + 0.04 * batch) / share)
            ms = fixed_ms + row_ms * batch * slow
            points[batch, share] = LatencyPoint(ms, ms, ms, 100)
    return Profile(name, "bench", gpu.kind, 200_000_000, 50_000_000, points)


def question(
    models: int, gpus: int, gpu: Gpu, seed: int
) -> tuple[list[Demand], dict[str, Profile]]:
    """Random models whose rates fill about two thirds of the accelerators.

    SLOs are twice the latency of 32 rows on the whole of one.
    """
    random = np.random.default_rng(seed)
    profiles = {f"m{i}": profile(f"m{i}", random, gpu) for i in range(models)}
    parts = random.dirichlet(np.ones(models)) * gpus * 0.65
    demand = []
    for (name, one), part in zip(profiles.items(), parts, strict=True):
        run_ms = one.points[32, 100].p95_ms
        demand.append(Demand(name, float(part * 32_000.0 / run_ms), 2.0 * run_ms))
    return demand, profiles


def measure(packer: str, models: int, gpus: int, repeat: int, tried: bool, seed: int = 0) -> Cost:
    """Time of one row's packer; if ``tried``, of the plan that is told, its bound included."""
    gpu, row = GPU_KINDS["a100"], resolve(packer)
    demand, profiles = question(models, gpus, gpu, seed)
    scenario = Scenario(tuple(demand), gpu, profiles, gpus)
    there, found, took = uniform_fleet(gpu, gpus), Plan(), []
    for _ in range(repeat):
        start = time.perf_counter()
        told = plan(scenario, system=row).plan if tried else None
        found = told or row.packer(demand, there, profiles, Plan())
        took.append((time.perf_counter() - start) * 1000.0)
    used = len({partition.gpu for partition in found.partitions})
    median = float(np.median(took))
    bound = lower_bound(demand, gpu, profiles).best.accelerators
    return Cost(packer, models, gpus, min(took), median, used, len(found.underserved), bound)


if __name__ == "__main__":
    main(cost)
