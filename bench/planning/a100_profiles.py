"""Profiles, scenarios and deployments of a published system (ParvaGPU, SC 2024), read as ours."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile

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
