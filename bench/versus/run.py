"""Ours against the others: `python -m bench.versus.run --out FOLDER`, resumable.

Every system gets the same GPUs, profiles and arrivals (Poisson, and gamma gaps of CV 4), plans for
the offered rates, and is simulated. Loads are parts of the ceiling: the rates at which no scheduler
gets by with fewer GPUs than there are (area and layouts of the GPUs). What counts is goodput:
replies in time; the bound on it is the offered rate below the ceiling. Five seeds, 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from bench.versus.worlds import World, worlds
from interlace.core.plan import Plan
from interlace.policy.catalog import CATALOG, resolve
from interlace.sim.arrivals import merge_arrivals
from interlace.sim.report import report
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from interlace.sim.workload.renewal import Gamma

#: A run is at least as long, whatever the rate: several of the longest SLOs.
_LEAST_S: Final = 1.0
#: Rows that only differ from another by leaving something out, and slow searches.
_LEFT_OUT: Final = ("dstack-plain", "ideal", "tfserving-static", "nebird")


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


@cache
def _worlds() -> dict[str, World]:
    return {world.name: world for world in worlds()}


def measure(case: Case) -> dict[str, Any]:
    """Plan once, run every seed."""
    world, row = _worlds()[case.world], resolve(case.system)
    demand = world.at(case.load * world.ceiling, case.cv)
    plan = row.planner(demand, world.fleet, world.profiles, Plan())
    seconds = max(_LEAST_S, case.requests / sum(d.rows_per_s for d in demand))
    runs = []
    for seed in range(case.seeds):
        workloads = {d.model: Gamma(d.rows_per_s, case.cv) for d in demand}
        arrivals = merge_arrivals(workloads, seconds, seed)
        scenario = Simulation(
            row, world.fleet, demand, world.profiles, world.profiles, arrivals, plan
        )
        found = report(simulate(scenario))
        runs.append(
            {
                "offered_rps": found.offered_rps,
                "goodput_rps": found.goodput_rps,
                "worst": found.worst_attainment,
                "jain": found.jain_attainment,
                "used": found.mean_utilisation,
            }
        )
    return {"key": case.key, "gpus": world.gpus, "runs": runs}


def cases(
    names: Sequence[str], systems: Sequence[str], loads: Sequence[float], seeds: int, requests: int
) -> Iterator[Case]:
    """Worlds first, so that what is done is complete for some of them."""
    for name in names:
        for cv in (1.0, 4.0):
            for load in loads:
                for one in systems:
                    yield Case(name, load, cv, one, seeds, requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench/versus"))
    parser.add_argument("--worlds", nargs="+", default=list(_worlds()))
    parser.add_argument(
        "--systems", nargs="+", default=[one for one in CATALOG if one not in _LEFT_OUT]
    )
    parser.add_argument("--loads", nargs="+", type=float, default=[0.8])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=6_000, help="of a run, in all")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    kept = asked.out / "versus.json"
    done: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    todo = [
        case
        for case in cases(asked.worlds, asked.systems, asked.loads, asked.seeds, asked.requests)
        if case.key not in done
    ]
    with ProcessPoolExecutor(asked.processes) as pool:
        waiting = [pool.submit(measure, case) for case in todo]
        for number, ended in enumerate(as_completed(waiting), 1):
            found = ended.result()
            done[found["key"]] = found
            kept.write_text(json.dumps(done, indent=1, sort_keys=True))
            print(f"{number}/{len(todo)} {found['key']}", flush=True)


if __name__ == "__main__":
    main()
