"""Published A100 MIG scenarios (ParvaGPU, SC 2024): each system's GPUs, the published, the bound.

Every plan is played in virtual time under Poisson arrivals of seeds that planning did not see,
twice: with the dispatcher and the admission of its own system, and with ours. A system's figure is
the attainment of the model that fares worst in the worst seed; 99 % of each model is asked for. Our
row plans with each of ``--limits`` on the GPUs, which none of these scenarios needs.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Annotated, Final

import numpy as np

from bench.harness import Report, Table, main
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.packing.bounds import LowerBound, lower_bound
from interlace.planning.parallel import usable_cores
from interlace.planning.plan_search import search_plan
from interlace.planning.scenario import Scenario
from interlace.planning.trial import TrialRuns
from interlace.policy.catalog import CATALOG

GPU = GPU_KINDS["a100-mig"]
#: The published plan is no system of the catalog; its dispatch is taken to be ours.
PUBLISHED = "published"
#: Rates of an unseen scenario are those of S3 times one of these, SLOs times one of those.
_RATES, _SLOS = (0.1, 0.3, 1.0), (0.5, 1.0, 2.0)


_SYSTEMS: Final = tuple(name for name in CATALOG if name != "ideal")
#: Shares of MIG instances by compute slices.
SHARE_PCT: Final = {1: 14, 2: 28, 3: 42, 4: 57, 7: 100}
#: Assumed: the data has no memory figures, and none of these models comes near a slice's 10 GB.
_WEIGHTS_BYTES: Final = 200 * 10**6
_ACTIVATION_BYTES: Final = 500 * 10**6


@dataclass(frozen=True, slots=True)
class Published:
    """A scenario, what is known of its models, and the published deployment if there is one."""

    name: str
    demand: tuple[Demand, ...]
    profiles: Mapping[str, Profile]
    plan: Plan | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the published deployment, 0 if there is none."""
        return len({part.gpu for part in self.plan.partitions}) if self.plan else 0


def scenarios(folder: Path) -> list[Published]:
    """S1 to S3 from the folder of the public data."""
    rows: dict[str, list[dict[str, str]]] = {}
    with (folder / "scenarios.csv").open() as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["scenario"], []).append(row)
    return [_published(folder, name, asked) for name, asked in rows.items()]


def read_profile(folder: Path, model: str) -> Profile:
    """A model's profile.

    A row is a batch in each of n processes that share a MIG instance; its throughput is that of
    one process. So n batches are n * batch rows that end within the latency: one point of ours.
    A larger number of rows that ends sooner bounds a smaller one (it can be padded). The printed
    latency is batch over throughput rounded to whole milliseconds, in every row: the quotient is
    taken. Rows without throughput did not run.
    """
    best: dict[tuple[int, int], float] = {}
    with (folder / "profiles" / f"{model}.csv").open() as file:
        for row in csv.DictReader(file):
            each, batch = float(row["Throughput"]), int(row["Batch size"])
            if each <= 0:
                continue
            key = (batch * int(row["Workload Number"]), SHARE_PCT[int(row["Mig instance"])])
            ms = batch * 1000.0 / each
            best[key] = min(ms, best.get(key, ms))
    points = {key: LatencyPoint(ms, ms, ms, 1) for key, ms in _padded(best).items()}
    return Profile(model, "published", "a100-mig", _WEIGHTS_BYTES, _ACTIVATION_BYTES, points)


def _padded(best: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], float] = {}
    for share in {share for _, share in best}:
        low = float("inf")
        for batch in sorted((b for b, s in best if s == share), reverse=True):
            low = min(low, best[batch, share])
            found[batch, share] = low
    return found


def _published(folder: Path, name: str, asked: list[dict[str, str]]) -> Published:
    profiles = {row["model"]: read_profile(folder, row["model"]) for row in asked}
    demand = tuple(
        Demand(
            row["model"],
            float(row["rate_rps"]),
            float(row["slo_ms"]),
            max(batch for batch, _ in profiles[row["model"]].points),
        )
        for row in asked
    )
    plan = _deployment(folder / f"deployment-{name}.csv", demand, profiles)
    return Published(name, demand, profiles, plan)


def _deployment(path: Path, demand: Sequence[Demand], profiles: Mapping[str, Profile]) -> Plan:
    """The published plan: one model in each instance, rates spread by what each could serve."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    rates = {one.model: one.rows_per_s for one in demand}
    could: dict[str, float] = {}
    made = []
    for row in rows:
        share, batch = SHARE_PCT[int(row["Instance size"])], int(row["Batch size"])
        rows_in_flight = batch * int(row["Num proc"])
        ms = profiles[row["Model"]].points[rows_in_flight, share].p95_ms
        able_rps = 1000.0 * rows_in_flight / ms
        could[row["Model"]] = could.get(row["Model"], 0.0) + able_rps
        made.append((row, share, rows_in_flight, ms, able_rps))
    parts = tuple(
        Partition(
            f"gpu{row['Num GPU']}:{row['Placement']}",
            f"gpu{row['Num GPU']}",
            share,
            (Slot(row["Model"], batch, rates[row["Model"]] * able / could[row["Model"]]),),
            ms,
        )
        for row, share, batch, ms, able in made
    )
    return Plan(parts)


def a100(
    data: Annotated[Path, "folder of the public data"],
    /,
    *,
    systems: Annotated[tuple[str, ...], "rows of the catalog"] = _SYSTEMS,
    unseen: Annotated[int, "further scenarios, drawn by seed"] = 4,
    limits: Annotated[tuple[int, ...], "on the GPUs of our plans; others have the last"] = (
        24,
        48,
        96,
    ),
    seeds: int = 5,
    first: Annotated[int, "of them"] = 1_000,
    seconds: Annotated[float, "of each seed, in virtual time"] = 10.0,
) -> Report:
    """Every system's plan of every scenario, tried."""
    found: list[Line] = []
    for one in (*scenarios(data), *drawn_scenarios(data, unseen)):
        for line in lines(one, systems, limits, range(first, first + seeds), seconds):
            print(
                f"{line.scenario}: {line.system}, at most {line.limit}: {line.gpus} GPUs, "
                f"{line.own_attainment:.4f}, {line.planning_s:.1f} s",
                flush=True,
            )
            found.append(line)
    heads = ("scenario", "req/s", "system", "at most", "GPUs", "published", "bound", "planned in s",
             "worst model, own dispatch", "ours", "not served")  # fmt: skip
    cells = [
        (
            line.scenario, f"{line.rate_rps:.0f}", line.system, line.limit,
            line.gpus,
            line.published_gpus or None, f"{line.bound:.2f}", f"{line.planning_s:.2f}",
            f"{line.own_attainment:.4f}", f"{line.our_attainment:.4f}", ", ".join(line.unserved),
        )
        for line in found
    ]  # fmt: skip
    figures = [asdict(line) for line in found]
    return Report(tables=[Table(heads, cells)], figures=figures)


@dataclass(frozen=True, slots=True)
class Line:
    """One system's answer to one scenario; attainments are the worst model's in the worst seed."""

    scenario: str
    rate_rps: float
    system: str
    limit: int
    gpus: int
    published_gpus: int
    bound: float
    bound_gpus: int
    planning_s: float
    unserved: tuple[str, ...]
    own_attainment: float
    our_attainment: float


def drawn_scenarios(folder: Path, count: int) -> list[Published]:
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
            rows_per_s=round(
                base[i].rows_per_s * float(random.choice(_RATES)) * float(random.uniform(0.5, 1.5)),
                1,
            ),
            slo_ms=base[i].slo_ms * float(random.choice(_SLOS)),
        )
        for i in sorted(picked.tolist())
    )
    return Published(name, demand, profiles)


def planned(one: Published, system: str, limit: int, bound: LowerBound) -> tuple[Plan, Fleet]:
    """The published plan, or a catalog row's on as few GPUs as it needs."""
    if system == PUBLISHED and one.plan is not None:
        return one.plan, uniform_fleet(GPU, one.gpus)
    scenario = Scenario(one.demand, GPU, one.profiles, limit)
    found = search_plan(scenario, CATALOG[system], bound.gpus, cores=usable_cores())
    return found.plan, found.fleet


def worst(
    one: Published, plan: Plan, there: Fleet, seeds: Sequence[int], seconds: float, system: str
) -> float:
    """The least attainment of any model in any seed; models not served at all do not count."""
    used = {part.gpu for part in plan.partitions}
    kept = Fleet(tuple(gpu for gpu in there.gpus if gpu.id in used))
    demand = [d for d in one.demand if d.model not in plan.unserved_rows_per_s]
    if not demand:
        return 0.0
    scenario = Scenario(tuple(demand), GPU, one.profiles)
    tried = [attainment(plan, kept, scenario, system, seconds, seed) for seed in seeds]
    return min(part for found in tried for part in found.values())


def attainment(
    plan: Plan, fleet: Fleet, scenario: Scenario, system: str, seconds: float, seed: int
) -> Mapping[str, float]:
    """Part of each model's requests answered in time; refusals count as violations."""
    runs = TrialRuns(scenario, CATALOG[system])
    runs.play(plan, fleet, scenario.demand, seconds, seed)
    return {model: found.attainment for model, found in runs.models().items()}


def lines(
    one: Published,
    systems: Sequence[str],
    limits: Sequence[int],
    seeds: Sequence[int],
    seconds: float,
) -> Iterator[Line]:
    """Each system's line, of those that are tried one for each limit."""
    bound = lower_bound(one.demand, GPU, one.profiles)
    asked = [
        (system, limit)
        for system in ([PUBLISHED, *systems] if one.plan else systems)
        for limit in (limits if system in CATALOG and CATALOG[system].tried else limits[-1:])
    ]
    for system, limit in asked:
        began = perf_counter()
        plan, there = planned(one, system, limit, bound)
        took_s = perf_counter() - began
        ours = worst(one, plan, there, seeds, seconds, "interlace")
        known = system in CATALOG
        own = worst(one, plan, there, seeds, seconds, system) if known else ours
        yield Line(
            one.name,
            sum(d.rows_per_s for d in one.demand),
            system,
            limit,
            len({part.gpu for part in plan.partitions}),
            one.gpus,
            bound.best.accelerators,
            bound.gpus,
            took_s,
            tuple(sorted(plan.underserved)),
            own,
            ours,
        )


if __name__ == "__main__":
    main(a100)
