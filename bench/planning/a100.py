"""Published A100 MIG scenarios: every system's GPUs beside the published plan and the bound.

Every plan is tried in virtual time under Poisson arrivals, twice: with the dispatcher and the
admission of its own system, and with ours. A system's figure is the attainment of the model that
fares worst in the worst seed; 99 % of each model is asked for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from bench.planning.a100_draw import draw
from bench.planning.a100_profiles import Published, scenarios
from bench.planning.attainment import simulate
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.packing.bounds import LowerBound, lower_bound
from interlace.policy.catalog import CATALOG
from interlace.policy.fewest import fewest, underserved

GPU = GPU_KINDS["a100-mig"]
LIMIT = 24
#: The published plan is no system of the catalog; its dispatch is taken to be ours.
PUBLISHED = "published"
#: Rates of an unseen scenario are those of S3 times one of these, SLOs times one of those.
_RATES, _SLOS = (0.1, 0.3, 1.0), (0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Line:
    """One system's answer to one scenario; attainments are the worst model's in the worst seed."""

    scenario: str
    rate_rps: float
    system: str
    gpus: int
    published_gpus: int
    bound: float
    bound_gpus: int
    planning_s: float
    unserved: tuple[str, ...]
    own_attainment: float
    our_attainment: float


def unseen(folder: Path, count: int) -> list[Published]:
    """Scenarios that nobody published: other models, rates and SLOs, by seed."""
    base = scenarios(folder)[-1]
    return [_drawn(f"R{seed}", base.demand, base.profiles, seed) for seed in range(1, count + 1)]


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
    return Published(name, demand, profiles)


def planned(one: Published, system: str, bound: LowerBound) -> tuple[Plan, Fleet]:
    """The published plan, or a catalog row's on as few GPUs as it needs."""
    if system == PUBLISHED and one.plan is not None:
        return one.plan, uniform_fleet(GPU, one.gpus)
    packer = CATALOG[system].packer
    return fewest(packer, one.demand, GPU, LIMIT, one.profiles, start=max(1, bound.gpus))


def worst(
    one: Published, plan: Plan, there: Fleet, seeds: int, seconds: float, system: str
) -> float:
    """The least attainment of any model in any seed; models not served at all do not count."""
    used = {part.gpu for part in plan.partitions}
    kept = Fleet(tuple(gpu for gpu in there.gpus if gpu.id in used))
    demand = [d for d in one.demand if d.model not in plan.unserved_rows_per_s]
    if not demand:
        return 0.0
    tried = [
        simulate(plan, demand, kept, one.profiles, seconds, seed, system) for seed in range(seeds)
    ]
    return min(part for found in tried for part in found.values())


def lines(one: Published, systems: Sequence[str], seeds: int, seconds: float) -> Iterator[Line]:
    """Each system's line."""
    bound = lower_bound(one.demand, GPU, one.profiles)
    for system in [PUBLISHED, *systems] if one.plan else systems:
        began = perf_counter()
        plan, there = planned(one, system, bound)
        took_s = perf_counter() - began
        ours = worst(one, plan, there, seeds, seconds, "interlace")
        known = system in CATALOG
        own = worst(one, plan, there, seeds, seconds, system) if known else ours
        yield Line(
            one.name,
            sum(d.rows_per_s for d in one.demand),
            system,
            len({part.gpu for part in plan.partitions}),
            one.gpus,
            bound.best.accelerators,
            bound.gpus,
            took_s,
            tuple(sorted(underserved(plan))),
            own,
            ours,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the public data, a100-mig")
    parser.add_argument("--systems", default=",".join(name for name in CATALOG if name != "ideal"))
    parser.add_argument("--unseen", type=int, default=4, help="further scenarios, drawn by seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, help="folder for a100.json and a100.svg")
    asked = parser.parse_args()
    found = []
    print("scenario  req/s  system     GPUs  published  bound  planned in  own dispatch  ours")
    for one in [*scenarios(asked.data), *unseen(asked.data, asked.unseen)]:
        for line in lines(one, asked.systems.split(","), asked.seeds, asked.seconds):
            left = f"  unserved: {', '.join(line.unserved)}" if line.unserved else ""
            print(
                f"{line.scenario:8} {line.rate_rps:6.0f}  {line.system:10} {line.gpus:4d} "
                f"{line.published_gpus or '':>9}  {line.bound:5.2f} {line.planning_s:9.2f} s "
                f"{line.own_attainment:13.4f} {line.our_attainment:.4f}{left}",
                flush=True,
            )
            found.append(line)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "a100.json").write_text(json.dumps([asdict(x) for x in found], indent=1))
        draw(found, asked.out / "a100.svg")


if __name__ == "__main__":
    main()
