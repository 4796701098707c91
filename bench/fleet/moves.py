"""A new plan for very many models on very many accelerators, carried out in simulation.

Rates move, a plan is made for the new ones, and nodes are told and change while requests come, by
the code that does so live. Models take so many times as long as those of ``bench.planning.cost``:
large ones, of which few requests a second fill an accelerator. Their SLOs are 2 to
27 s: promises are broken as often as they are for good only after as long ``before``.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from bench.harness import Report, Table, main
from bench.planning.cost import question
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Fleet
from interlace.core.node import NodeDescription
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile, Profiles
from interlace.fleet.simulation.run import FleetRecord, simulate_fleet
from interlace.fleet.simulation.scenario import FleetSimulation, RateChange
from interlace.policy.base import Planner
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import Arrivals, Gamma, merge_arrivals

_ON_A_NODE = 8
#: ``question`` counts accelerators by the rate of full batches; promises need fewer of its rates.
_DEMAND = 2.8


def moves(
    *,
    models: int = 10_000,
    gpus: Annotated[int, "accelerators, eight on a node"] = 2_000,
    routers: int = 2,
    before: Annotated[float, "seconds of requests until rates move"] = 1.0,
    after: Annotated[float, "seconds of requests from then on"] = 12.0,
    load: Annotated[float, "requests that come, in parts of the rates planned for"] = 0.9,
    spread: Annotated[float, "rates move by a factor of up to so much, or its inverse"] = 1.25,
    slow: Annotated[float, "so many times as long a batch takes"] = 200.0,
    seed: int = 0,
) -> Report:
    """Seconds, moves, and promises broken before and while the plan is changed."""
    gpu = GPU_KINDS["a100"]
    demand, profiles = question(models, round(_DEMAND * gpus), gpu, seed)
    demand = [replace(d, rows_per_s=0.9 * d.rows_per_s / slow, slo_ms=d.slo_ms * slow)
              for d in demand]  # fmt: skip
    profiles = {name: _slower(one, slow) for name, one in profiles.items()}
    random = np.random.default_rng(seed)
    factors = spread ** random.uniform(-1.0, 1.0, models)
    moved = [
        replace(one, rows_per_s=one.rows_per_s * float(factor))
        for one, factor in zip(demand, factors, strict=True)
    ]
    nodes = tuple(
        NodeDescription(
            f"n{i:03}", f"zone{i % 4}", 1, "", True,
            tuple(replace(gpu, id=f"gpu{j}") for j in range(_ON_A_NODE)),
        )
        for i in range(gpus // _ON_A_NODE)
    )  # fmt: skip
    row = resolve("interlace")
    planner = _Timed(row.packer, [])
    scenario = FleetSimulation(
        replace(row, planner=planner),
        nodes,
        tuple(demand),
        {gpu.kind: profiles},
        {gpu.kind: profiles},
        _joined(_poisson(demand, load, before, seed), _poisson(moved, load, after, seed + 1)),
        routers=routers,
        changes=(RateChange(before * 1000.0, tuple(moved)),),
        epoch_ms=float("inf"),
        warm_ms=4_000.0,
    )
    began_s = time.perf_counter()
    record = simulate_fleet(scenario)
    return _report(record, planner, time.perf_counter() - began_s)


@dataclass(frozen=True, slots=True)
class _Timed:
    """A planner, and how long each of its plans took, in s of this machine."""

    planner: Planner
    took_s: list[float]

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        began_s = time.perf_counter()
        plan = self.planner(demand, fleet, profiles, current)
        self.took_s.append(time.perf_counter() - began_s)
        print(
            f"planned in {self.took_s[-1]:.1f} s: {len(plan.partitions)} partitions on "
            f"{len({part.gpu for part in plan.partitions})} accelerators, "
            f"{len(plan.unserved_rows_per_s)} models short",
            flush=True,
        )
        return plan


def _slower(one: Profile, factor: float) -> Profile:
    points = {
        at: LatencyPoint(p.median_ms * factor, p.p95_ms * factor, p.p99_ms * factor, p.samples)
        for at, p in one.points.items()
    }
    return replace(one, points=points)


def _poisson(demand: list[Demand], load: float, seconds: float, seed: int) -> Arrivals:
    rates = {d.model: Gamma(load * d.rows_per_s, 1.0) for d in demand}
    return merge_arrivals(rates, seconds, seed)


def _joined(one: Arrivals, then: Arrivals) -> Arrivals:
    times_ms = np.concatenate([one.times_ms, then.times_ms + one.seconds * 1000.0])
    which = np.concatenate([one.which, then.which])
    return Arrivals(one.models, times_ms, which, one.seconds + then.seconds)


def _report(record: FleetRecord, planner: _Timed, took_s: float) -> Report:
    (change,) = record.changes
    phases = {
        "before": (record.from_ms, change.at_ms),
        "while it changes": (change.at_ms, change.settled_ms),
        "after": (change.settled_ms, record.until_ms),
    }
    cells: list[list[str | float | int | None]] = []
    for name, (from_ms, until_ms) in phases.items():
        here = [one for one in record.requests if from_ms <= one.arrived_ms < until_ms]
        broken = sum(not one.in_time for one in here)
        part_pct = 100.0 * broken / len(here) if here else None
        cells.append([name, (until_ms - from_ms) / 1000.0, len(here), broken, part_pct])
    settled_s = (change.settled_ms - change.at_ms) / 1000.0
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    figures = {
        "plan_s": planner.took_s,
        "settled_s": settled_s,
        "moves": change.loads,
        "first_loads": record.loads - change.loads,
        "orders": record.orders,
        "wall_s": took_s,
        "memory_mb": memory_mb,
    }
    tables = [
        Table(["phase", "seconds", "requests", "broken", "%"], cells),
        Table(["figure", "value"], [[name, str(value)] for name, value in figures.items()]),
    ]
    return Report(tables=tables, figures=figures)


if __name__ == "__main__":
    main(moves)
