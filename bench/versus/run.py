"""Ours against the others; what was measured before in the same folder is not measured again.

Every system gets the same GPUs, profiles and arrivals (Poisson, and gamma gaps of CV 4), plans for
the offered rates, and is simulated. Loads are parts of the ceiling: the rates at which no scheduler
gets by with fewer GPUs than there are (area and layouts of the GPUs). What counts is goodput:
replies in time; the bound on it is the offered rate below the ceiling. Five seeds, 95 % intervals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, Final

from bench.harness import Report, Table, interval, main
from bench.versus.worlds import CROWD, World, crowd, worlds
from interlace.core.plan import Demand, Plan
from interlace.policy.base import System
from interlace.policy.catalog import CATALOG, resolve
from interlace.sim.arrivals import Gamma, merge_arrivals
from interlace.sim.report import report
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation

OURS: Final = "interlace"
_Run = Mapping[str, Any]
_HEADS: Final = (
    "workload", "load", "CV", "GPUs", "offered/s", "interlace, in time", "best other",
    "its in time", "ours / best other", "worst model, ours", "its", "starved",
)  # fmt: skip


#: A model of which less is in time is starved, where another system has as much of it in time.
_STARVED, _SERVED = 0.1, 0.9


def grouped(kept: Mapping[str, Any]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Runs by (world, load, cv), then by system."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for key, one in kept.items():
        world, load, cv, system = key.split("|")
        found.setdefault((world, load, cv), {})[system] = one
    return found


def table(kept: Mapping[str, Any]) -> Table:
    """One line a world, load and variation; 95 % intervals over the seeds.

    ``starved`` are models that ours does not serve, and another does.
    """
    lines = []
    for (world, load, cv), systems in sorted(grouped(kept).items()):
        if OURS not in systems or len(systems) < 2:
            continue
        ours = systems[OURS]["runs"]
        others = {name: one["runs"] for name, one in systems.items() if name != OURS}
        name = max(others, key=lambda one: mean(run["goodput_rps"] for run in others[one]))
        best = others[name]
        ratios = [a["goodput_rps"] / b["goodput_rps"] for a, b in zip(ours, best, strict=True)]
        offered = f"{mean(run['offered_rps'] for run in ours):.0f}"
        worst = [_percent([run["worst"] for run in runs]) for runs in (ours, best)]
        cells = (world, load, cv, systems[OURS]["gpus"], offered, _part(ours), name, _part(best))
        starved = _starved(ours, list(others.values()))
        lines.append((*cells, interval(ratios).text(), *worst, starved))
    return Table(_HEADS, lines)


def _starved(ours: Sequence[_Run], others: Sequence[Sequence[_Run]]) -> int:
    mine = _attainments(ours)
    theirs = [_attainments(one) for one in others]
    most = {model: max(one.get(model, 0.0) for one in theirs) for model in mine}
    return sum(mine[model] < _STARVED and most[model] >= _SERVED for model in mine)


def _attainments(runs: Sequence[_Run]) -> dict[str, float]:
    """The mean of each model's over the runs."""
    models = runs[0].get("models", {})  # results of before have none
    return {name: mean(run["models"].get(name, 1.0) for run in runs) for name in models}


def _part(runs: Sequence[_Run]) -> str:
    return _percent([run["goodput_rps"] / run["offered_rps"] for run in runs])


def _percent(parts: Sequence[float]) -> str:
    return interval([100 * part for part in parts]).text(1) + " %"


#: A run is at least as long, whatever the rate: several of the longest SLOs.
_LEAST_S: Final = 1.0
#: Rows that only differ from another by leaving something out, and slow searches.
_LEFT_OUT: Final = ("dstack-plain", "ideal", "tfserving-static", "nebird")
_SYSTEMS: Final = tuple(one for one in CATALOG if one not in _LEFT_OUT)


@cache
def _worlds() -> dict[str, World]:
    return {world.name: world for world in worlds()}


@cache
def _world(name: str) -> World:
    return crowd(int(name.removeprefix(CROWD))) if name.startswith(CROWD) else _worlds()[name]


def versus(
    *,
    worlds: Annotated[tuple[str, ...], "workloads, or crowd-SEED; all if none is named"] = (),
    systems: tuple[str, ...] = _SYSTEMS,
    loads: Annotated[tuple[float, ...], "parts of the ceiling"] = (0.8,),
    seeds: int = 5,
    requests: Annotated[int, "of a run, in all"] = 6_000,
    processes: int = 2,
    kept: Annotated[Path | None, "only show the table of such a file"] = None,
    out: Path,
) -> Report:
    """Every system on every workload."""
    if kept is not None:
        return Report(tables=[table(json.loads(kept.read_text()))])
    file = out / "versus-runs.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    asked = cases(worlds or tuple(_worlds()), systems, loads, seeds, requests)
    todo = [case for case in asked if case.key not in done]
    with ProcessPoolExecutor(processes) as pool:
        waiting = [pool.submit(measure, case) for case in todo]
        for number, ended in enumerate(as_completed(waiting), 1):
            found = ended.result()
            done[found["key"]] = found
            file.write_text(json.dumps(done, indent=1, sort_keys=True))
            print(f"{number}/{len(todo)} {found['key']}", flush=True)
    return Report(tables=[table(dict(sorted(done.items())))])


@dataclass(frozen=True, slots=True)
class Case:
    """One world at one load and variation, by one system, with so many seeds."""

    world: str
    load: float
    cv: float
    system: str
    seeds: int
    requests: int

    @property
    def key(self) -> str:
        return f"{self.world}|{self.load:g}|{self.cv:g}|{self.system}"


def measure(case: Case) -> dict[str, Any]:
    """Plan once, run every seed."""
    world, row = _world(case.world), resolve(case.system)
    demand = world.at(case.load * world.ceiling, case.cv)
    plan = row.planner(demand, world.fleet, world.profiles, Plan())
    runs = list(played(row, world, demand, plan, case.seeds, case.requests))
    return {"key": case.key, "gpus": world.gpus, "runs": runs}


def played(
    row: System, world: World, demand: Sequence[Demand], plan: Plan, seeds: int, requests: int
) -> Iterator[dict[str, Any]]:
    """What became of the demand by a plan, seed by seed."""
    seconds = max(_LEAST_S, requests / sum(d.rows_per_s for d in demand))
    for seed in range(seeds):
        workloads = {d.model: Gamma(d.rows_per_s, d.cv) for d in demand}
        arrivals = merge_arrivals(workloads, seconds, seed)
        scenario = Simulation(
            row, world.fleet, tuple(demand), world.profiles, world.profiles, arrivals, plan
        )
        found = report(simulate(scenario))
        yield {
            "offered_rps": found.offered_rps,
            "goodput_rps": found.goodput_rps,
            "worst": found.worst_attainment,
            "jain": found.jain_attainment,
            "used": found.mean_utilisation,
            "models": {name: one.attainment for name, one in found.models.items()},
        }


def cases(
    names: Sequence[str], systems: Sequence[str], loads: Sequence[float], seeds: int, requests: int
) -> Iterator[Case]:
    """Worlds first, so that what is done is complete for some of them."""
    for name in names:
        for cv in (1.0, 4.0):
            for load in loads:
                for one in systems:
                    yield Case(name, load, cv, one, seeds, requests)


if __name__ == "__main__":
    main(versus)
