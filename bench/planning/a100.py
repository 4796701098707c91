"""Published A100 MIG scenarios: every system's GPUs beside the published plan and the bound."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.planning.a100_profiles import Published, read_profile, scenarios
from bench.planning.attainment import simulate
from interlace.core.hardware import Fleet
from interlace.core.kinds import KINDS
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.perf.bounds import LowerBound, lower_bound
from interlace.policy.catalog import CATALOG
from interlace.policy.fewest import fewest, short

GPU = KINDS["a100-mig"]
LIMIT = 24
#: Rates of an unseen scenario are those of S3 times one of these, SLOs times one of those.
_RATES, _SLOS = (0.1, 0.3, 1.0), (0.5, 1.0, 2.0)


def unseen(folder: Path, count: int) -> list[Published]:
    """Scenarios that nobody published: other models, rates and SLOs, by seed."""
    base = scenarios(folder)[-1]
    profiles = {one.model: read_profile(folder, one.model) for one in base.demand}
    return [_drawn(f"R{seed}", base.demand, profiles, seed) for seed in range(1, count + 1)]


def _drawn(
    name: str, base: Sequence[Demand], profiles: Mapping[str, Profile], seed: int
) -> Published:
    random = np.random.default_rng(seed)
    picked = random.choice(len(base), int(random.integers(3, len(base) + 1)), replace=False)
    demand = tuple(
        replace(
            base[i],
            rate_rps=round(
                base[i].rate_rps * float(random.choice(_RATES)) * float(random.uniform(0.5, 1.5)), 1
            ),
            slo_ms=base[i].slo_ms * float(random.choice(_SLOS)),
        )
        for i in sorted(picked.tolist())
    )
    return Published(name, demand, profiles, 0)


def planned(one: Published, system: str, bound: LowerBound) -> tuple[Plan, Fleet]:
    """A catalog row's plan on as few GPUs as it needs."""
    packer = CATALOG[system].packer
    return fewest(packer, one.demand, GPU, LIMIT, one.profiles, start=max(1, bound.gpus))


def worst(
    one: Published, plan: Plan, fleet: Fleet, seeds: int, seconds: float
) -> tuple[float, float]:
    """Least and median over seeds of the attainment of the model that fares worst."""
    used = {part.gpu for part in plan.partitions}
    there = Fleet(tuple(gpu for gpu in fleet.gpus if gpu.id in used))
    demand = [d for d in one.demand if d.model not in plan.unserved_rps]
    found = [
        min(simulate(plan, demand, there, one.profiles, seconds, seed).values(), default=0.0)
        for seed in range(seeds)
    ]
    return min(found), float(np.median(found))


def main() -> None:
    """Print a line for each scenario and system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the public data, a100-mig")
    parser.add_argument("--systems", default="interlace,gpulet,nexus,bestfit,temporal")
    parser.add_argument("--unseen", type=int, default=4, help="further scenarios, drawn by seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    print(
        f"{'':4} {'rate/s':>7} {'system':10} {'GPUs':>4} {'publ.':>5} {'bound':>12} in SLO, worst"
    )
    for one in [*scenarios(asked.data), *unseen(asked.data, asked.unseen)]:
        bound = lower_bound(one.demand, GPU, one.profiles)
        for system in asked.systems.split(","):
            plan, fleet = planned(one, system, bound)
            gpus = len({part.gpu for part in plan.partitions})
            least, median = worst(one, plan, fleet, asked.seeds, asked.seconds)
            rate = sum(d.rate_rps for d in one.demand)
            left = f" unserved: {', '.join(sorted(short(plan)))}" if short(plan) else ""
            floor = f"{bound.best.accelerators:6.2f} -> {bound.gpus:2d}"
            print(
                f"{one.name:4} {rate:7.0f} {system:10} {gpus:4d} {one.gpus or '':>5} {floor} "
                f"{least:.4f} ({median:.4f}){left}",
                flush=True,
            )
            rows.append(
                {
                    "scenario": one.name,
                    "rate_rps": rate,
                    "system": system,
                    "gpus": gpus,
                    "published_gpus": one.gpus or None,
                    "bound": bound.best.accelerators,
                    "unserved": sorted(short(plan)),
                    "worst_attainment": least,
                    "median_of_worst": median,
                }
            )
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "a100.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
