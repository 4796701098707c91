"""Plans held to their promise: what is told beside what the engine keeps under fresh seeds.

Scenarios are drawn: ``gpulet``: its nine models at random rates, a part of the most that gpulet's
own planner serves on ``--gpus`` GPUs; ``random``: models, SLOs, arrivals (cv 0.3 to 4) and kinds of
GPU of all sorts, without a limit that binds. A scenario file may be given instead. A plan is *kept*
if no model is below its promise beyond chance: one exact binomial test for each model over fresh
seeds, at 1 % for all models of all scenarios together. A scenario can be kept if some plan keeps
it: the one that is told, our planner's cut of all GPUs, or gpulet's plan under our dispatcher.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, lgamma, log
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np

from bench.harness import Report, Table, main
from bench.harness.bisection import highest
from bench.planning.gpulet_profiles import MODELS, profiles
from bench.planning.schedulers import GPU, serves
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.planning.capacity_plan import plan
from interlace.planning.scenario import Scenario, read_scenario
from interlace.planning.trial import ModelTrial, TrialRuns
from interlace.policy.catalog import CATALOG
from interlace.policy.planners.gpulet import Gpulet

_CHANCE: Final = 0.01
_FRESH: Final = 1_000  #: seeds from here on are not those of plans
_KINDS: Final = ("2080ti", "a100", "a100-mig", "h100")
_BATCHES: Final = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class PromiseCheck:
    """One scenario: what was told, and what fresh seeds made of it."""

    scenario: str
    gpus: int
    bound: int
    told: bool  #: all served, every promise kept
    kept: bool  #: by the plan told
    can: bool  #: by any plan that is known here
    worst: str
    attainment: float
    chance: float  #: of the worst model's figure, were its promise just kept
    planning_s: float


def kept(
    *,
    draw: Literal["gpulet", "random"] = "gpulet",
    file: Annotated[Path | None, "a scenario file instead"] = None,
    count: Annotated[int, "scenarios drawn"] = 40,
    first: Annotated[int, "seed of the first scenario"] = 0,
    gpus: int = 4,
    seeds: int = 5,
    seconds: Annotated[float, "of each fresh seed"] = 4.0,
) -> Report:
    """Each scenario planned, and its plan played under fresh seeds."""
    if file is not None:
        asked = {str(file): read_scenario(file)}
    else:
        names = range(first, first + count)
        asked = {
            f"{draw} {n}": gpulet_scenario(n, gpus) if draw == "gpulet" else random_scenario(n)
            for n in names
        }
    models = sum(len(one.demand) for one in asked.values())
    found = []
    for name, scenario in asked.items():
        found.append(check(name, scenario, seeds, seconds, _CHANCE / models))
        print(found[-1], flush=True)
    able = sum(one.can for one in found)
    told = sum(one.told for one in found)
    cells = [
        ("scenarios", len(found)),
        ("can be kept", able),
        ("told as served", told),
        ("told and kept", sum(one.told and one.kept for one in found)),
        ("told and broken beyond chance", sum(one.told and not one.kept for one in found)),
        ("told, of those that can be kept", f"{told / able:.0%}" if able else "-"),
        ("planning, median and most s", _times([one.planning_s for one in found])),
    ]
    return Report(tables=[Table(("", ""), cells)], figures=[asdict(one) for one in found])


def check(name: str, scenario: Scenario, seeds: int, seconds: float, chance: float) -> PromiseCheck:
    """The scenario's plan under fresh seeds; each model's test is at ``chance``."""
    found = plan(scenario)
    kept, (worst, attainment, by_chance) = held(
        found.plan, found.fleet, scenario, seeds, seconds, chance
    )
    kept = kept and found.served
    can = kept or any(
        held(other, fleet, scenario, seeds, seconds, chance)[0]
        for other, fleet in _others(scenario)
    )
    return PromiseCheck(
        name, found.gpus, found.bound.gpus, found.kept, kept, can, worst, attainment,
        by_chance, found.planning_s,
    )  # fmt: skip


def _others(scenario: Scenario) -> Iterator[tuple[Plan, Fleet]]:
    """Further plans for all the accelerators that the scenario allows, where those are few."""
    if scenario.limit > 8:
        return
    fleet = uniform_fleet(scenario.gpu, scenario.limit)
    row = CATALOG["interlace"]
    for planner in (row.planner, Gpulet()):
        found = planner(scenario.demand, fleet, scenario.busy_profiles, Plan())
        yield replace(found, unserved_rows_per_s={}, reasons={}), fleet


def held(
    told: Plan, fleet: Fleet, scenario: Scenario, seeds: int, seconds: float, chance: float
) -> tuple[bool, tuple[str, float, float]]:
    """Whether a plan is kept under fresh seeds; the model furthest below its promise, with its
    attainment and the chance of that."""
    runs = TrialRuns(scenario, CATALOG["interlace"])
    placed = {slot.model for part in told.partitions for slot in part.slots}
    asked = [one for one in scenario.demand if one.rows_per_s > 0]
    if any(one.model not in placed for one in asked):
        return False, ("no place", 0.0, 0.0)
    for seed in range(_FRESH, _FRESH + seeds):
        runs.play(told, fleet, asked, seconds, seed)
    tried = runs.models()
    by_chance = {d.model: below(tried[d.model], d.attainment) for d in asked if d.model in tried}
    worst = min(by_chance, key=lambda m: (by_chance[m], m))
    return by_chance[worst] >= chance, (worst, tried[worst].attainment, by_chance[worst])


def below(found: ModelTrial, asked: float) -> float:
    """The chance of so few in time or fewer, if each were in time with probability ``asked``."""
    lost, sent = found.sent - found.in_time, found.sent
    terms = [
        exp(
            lgamma(sent + 1)
            - lgamma(k + 1)
            - lgamma(sent - k + 1)
            + k * log(1 - asked)
            + (sent - k) * log(asked)
        )
        for k in range(lost)
    ]
    return max(0.0, 1.0 - sum(terms))


def gpulet_scenario(seed: int, gpus: int) -> Scenario:
    """The nine models at random rates: 0.7 to 1 of the most that gpulet serves on ``gpus`` GPUs."""
    random = np.random.default_rng(seed)
    weights = random.uniform(0.1, 1.0, len(MODELS))
    part = float(random.uniform(0.7, 1.0))

    def demand(rate_rps: float) -> list[Demand]:
        pairs = zip(MODELS.items(), weights.tolist(), strict=True)
        return [Demand(m, round(rate_rps * w, 1), slo_ms) for (m, (slo_ms, _)), w in pairs]

    there = profiles()
    most = highest(lambda rate: serves(Gpulet(), demand(rate), gpus, there), 10.0, 5_000.0, 1.01)
    return Scenario(tuple(demand(part * most)), GPU, there, limit=gpus)


def random_scenario(
    seed: int, models: tuple[int, int] = (1, 9), gpus: tuple[float, float] = (0.5, 6.0)
) -> Scenario:
    """So many models of random work on a random kind of GPU, for about so many GPUs of it."""
    random = np.random.default_rng(seed)
    gpu = GPU_KINDS[str(random.choice(_KINDS))]
    count = int(random.integers(models[0], models[1] + 1))
    names = [f"m{i}" for i in range(count)]
    known = {name: _random_profile(name, gpu.shares_pct, random) for name in names}
    area = float(random.uniform(*gpus)) * random.dirichlet(np.ones(count))
    demand = []
    for name, part in zip(names, area.tolist(), strict=True):
        full_ms = known[name].points[8, 100].p95_ms
        demand.append(
            Demand(
                name,
                round(max(0.5, part * 8_000.0 / full_ms), 1),
                round(float(random.uniform(1.5, 20.0)) * known[name].points[1, 100].p95_ms, 2),
                attainment=float(random.choice([0.95, 0.99, 0.999], p=[0.2, 0.7, 0.1])),
                cv=round(float(np.exp(random.uniform(np.log(0.3), np.log(4.0)))), 2),
            )
        )
    return Scenario(tuple(demand), gpu, known)


def _random_profile(name: str, shares: Sequence[int], random: np.random.Generator) -> Profile:
    """Latency affine in the batch, and steeper below a knee."""
    row_ms = float(np.exp(random.uniform(np.log(0.1), np.log(10.0))))
    fixed_ms = row_ms * float(random.uniform(0.5, 10.0))
    knee_pct, steep = float(random.uniform(10.0, 100.0)), float(random.uniform(0.5, 1.0))
    points = {}
    for share in shares:
        slower = max(1.0, knee_pct / share) ** steep
        for batch in _BATCHES:
            ms = (fixed_ms + row_ms * batch) * slower
            points[batch, share] = LatencyPoint(ms, ms, ms, 1)
    return Profile(name, "drawn", "any", 200 * 10**6, 10**8, points)


def _times(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    return f"{ordered[len(ordered) // 2]:.2f}, {ordered[-1]:.2f}" if ordered else "-"


if __name__ == "__main__":
    main(kept)
