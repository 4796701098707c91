"""What plans promise and keep, by the predictor of interference that they were made with.

Pairs of models of a public set of co-runs (``bench.planning.interference``) share V100s. The truth
is what all of the set teaches; plans know what a predictor learned from half of what was seen of
the pair, or without the pair, and so does the engine that keeps them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from bench.harness import Report, Table, main
from bench.planning.interference import fitters
from bench.planning.pairs import Measured, read
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.plan import Demand, Plan
from interlace.core.request import Outcome
from interlace.device.simulated.boards import physics_of
from interlace.device.simulated.device import device_factory
from interlace.perf.interference import Interference
from interlace.perf.slowdown.learned import fit_learned
from interlace.perf.slowdown.observation import Observation
from interlace.planning.scenario import Scenario
from interlace.planning.trial import ModelTrial
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import merge_arrivals
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from interlace.sim.workload.renewal import Gamma

_GPU = GPU_KINDS["v100"]
_SHARES_PCT = (20, 40, 50, 60, 80, 100)
#: SLOs are so many times the latency of 4 rows on half of a GPU.
_SLO_FACTOR = (4.0, 10.0)
_REQUESTS = 10_000
#: The highest factor on rates that is looked for, and how closely.
_HIGHEST, _CLOSE = 4.0, 0.02


class PlayedPlan(NamedTuple):
    """The most that one GPU is planned for, played as it truly is.

    ``factor`` is on the scenario's rates; ``broken`` counts models that are surely below 99 %.
    """

    split: str
    predictor: str
    factor: float
    attainment: float
    broken: int


def beside(
    *,
    data: Annotated[tuple[Path, ...], "clones of the sets"],
    scenarios: Annotated[int, "of each pair of models"] = 2,
    system: str = "interlace",
) -> Report:
    """Rates that one GPU is planned for, and what is kept of them, by predictor on every set."""
    tables, figures = [], {}
    for folder in data:
        measured = read(folder)
        kept = list(played(measured, scenarios, system))
        tables.append(table_of(measured.name, kept))
        figures[measured.name] = [one._asdict() for one in kept]
    return Report((), None, tables=tables, figures=figures)


def played(measured: Measured, scenarios: int, system: str) -> Iterator[PlayedPlan]:
    """A plan of every pair of models by every predictor, played with the interference that is."""
    fit = fitters(measured.solos)
    truth = fit_learned(measured.seen, measured.solos)
    for first, second in combinations(sorted({one.runner.model for one in measured.seen}), 2):
        for split, seen in without(measured.seen, first, second).items():
            learned = {name: learn(seen) for name, learn in fit.items()} if seen else {}
            for number in range(scenarios):
                asked = scenario(measured, (first, second), number)
                for name, predicted in learned.items():
                    found = PlayedPlan(split, name, *_played(asked, predicted, truth, system))
                    print(f"{measured.name}: {first}, {second}: {found}", flush=True)
                    yield found


def without(
    seen: Sequence[Observation], first: str, second: str
) -> Mapping[str, list[Observation]]:
    """What is known before the two are put side by side: half of them, or nothing."""
    both = {first, second}
    pair = [one for one in seen if one.models == both]
    half = {id(one) for one in pair[len(pair) // 2 :]}
    return {
        "known pair": [one for one in seen if id(one) not in half],
        "unseen pair": [one for one in seen if one.models != both],
    }


def scenario(measured: Measured, models: Sequence[str], seed: int) -> Scenario:
    """Rates in a random proportion, and random SLOs of both models."""
    random = np.random.default_rng(seed)
    demand, profiles = [], {}
    for model in models:
        surface = measured.solos.surfaces[model]
        slo_ms = random.uniform(*_SLO_FACTOR) * surface.latency_ms(4, 50)
        rows_per_s = random.uniform(0.3, 1.0) * 4_000.0 / surface.latency_ms(8, 100)
        demand.append(Demand(model, rows_per_s, slo_ms, 32))
        profiles[model] = measured.profiles[model]
    return Scenario(tuple(demand), replace(_GPU, shares_pct=_SHARES_PCT), profiles)


def _played(
    asked: Scenario, predicted: Interference, truth: Interference, system: str
) -> tuple[float, float, int]:
    known, row = replace(asked, interference=predicted), resolve(system)
    fleet = uniform_fleet(asked.gpu, 1)
    low, high, plan = 0.0, _HIGHEST, Plan()
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        found = row.packer(_times(asked.demand, middle), fleet, known.busy_profiles, Plan())
        if found.underserved:
            high = middle
        else:
            low, plan = middle, found
    if not plan.partitions:
        return 0.0, 1.0, 0
    demand = _times(asked.demand, low)
    rates = {one.model: Gamma(one.rows_per_s, one.cv) for one in demand}
    seconds = _REQUESTS / sum(one.rows_per_s for one in demand)
    run = Simulation(
        row,
        fleet,
        demand,
        belief=known.busy_profiles,
        truth=asked.profiles,
        arrivals=merge_arrivals(rates, seconds, seed=99),
        plan=plan,
        device=device_factory(replace(physics_of(asked.gpu), interference=truth)),
    )
    answered: dict[str, list[bool]] = {one.model: [] for one in demand}
    for request in simulate(run).served:
        answered[request.model].append(request.outcome is Outcome.OK)
    trials = [ModelTrial(len(mine), sum(mine), 0.0) for mine in answered.values()]
    broken = sum(one.interval()[1] < demand[0].attainment for one in trials)
    return low, min(one.attainment for one in trials), broken


def _times(demand: Sequence[Demand], factor: float) -> tuple[Demand, ...]:
    return tuple(replace(one, rows_per_s=factor * one.rows_per_s) for one in demand)


def table_of(name: str, kept: Sequence[PlayedPlan]) -> Table:
    """Over plans: rates relative to those without interference, attainment, promises broken."""
    groups: dict[tuple[str, str], list[PlayedPlan]] = defaultdict(list)
    for one in kept:
        groups[one.split, one.predictor].append(one)
    cells = []
    for (split, predictor), mine in groups.items():
        planned, base = (sum(o.factor for o in some) for some in (mine, groups[split, "none"]))
        least = min(one.attainment for one in mine)
        cells.append(
            (split, predictor, f"{planned / base:.2f}", f"{100 * least:.2f}",
             f"{sum(one.broken for one in mine)} of {2 * len(mine)}")
        )  # fmt: skip
    heads = (
        "split",
        "predictor",
        "rates planned, over none's",
        "least % in time",
        "promises broken",
    )
    return Table(heads, cells, f"{name}: plans as they are kept")


if __name__ == "__main__":
    main(beside)
