"""A thousand models on four GPUs, asked as functions are in Azure's cloud, within 100 ms.

`examples/simulation/azure.toml` as it stands: BERT-Base in FP16 on simulated H100, by the public
sample of functions without its largest, and by a day drawn from it. Beside it stands what no
scheduler exceeds here: what comes
in a window is answered until an SLO after it, or late, and until then GPUs execute and links copy
only so much, whatever is held when it begins, and whoever knows the future.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Annotated, Final

import numpy as np

from bench.cold.playing import Seeds, told
from bench.harness import Report, Row, main
from interlace.core.hardware import Fleet
from interlace.core.loading import HostLinks
from interlace.core.profile import Profile
from interlace.planning.scenario import read_scenario
from interlace.planning.simulation import SimulationSettings, simulations
from interlace.planning.simulation import trace as arrivals_of
from interlace.planning.systems import system_of
from interlace.policy.cold_starts.frontier import lasting, moved_bytes
from interlace.sim.arrivals import Arrivals

TRACE: Final = "../shared/data/traces/azure-functions-2019-sample500.csv"
#: Functions of the first day of the whole trace.
DAY: Final = 46_413
_SCENARIO: Final = str(Path(__file__).parents[2] / "examples" / "simulation" / "azure.toml")
_SLO_MS: Final = 100.0
_WINDOWS_MS: Final = (50.0, 200.0, 1000.0, 5000.0, 30_000.0)
_AIM: Final = 99.99


def azure(
    *,
    trace: Annotated[str, "calls by function and minute"] = TRACE,
    scenario: Annotated[str, "models alike, a trace, memory"] = _SCENARIO,
    gpus: Annotated[int, "of its kind"] = 4,
    seconds: Annotated[float, "played"] = 60.0,
    seeds: Seeds = 2,
    rows: Annotated[str, "answers to cold starts"] = "pipeswitch,deepplan-dha,interlace",
) -> Report:
    """In time, p99 and cold requests by trace and answer, and the bound of each trace."""
    read = read_scenario(scenario)
    names = rows.split(",")
    systems = [system_of(f"interlace/{name}") for name in names]
    runs = [SimulationSettings(seconds, seed=seed, gpus=gpus) for seed in range(seeds)]
    file = {"kind": "azure", "file": str(Path(trace).resolve())}
    found: list[Row] = []
    for words, more in (("sample", {"skip": 1}), ("day", {"drawn": DAY})):
        total_rps = sum(one.rows_per_s for one in read.demand)
        table = {**file, **more, "total_rps": total_rps}
        parts = {name: {**table, "part": one["part"]} for name, one in read.workloads.items()}
        played = replace(read, workloads=parts)
        results = list(simulations(played, systems, runs))
        profile, fleet = next(iter(read.profiles.values())), results[0].fleet
        bounds = [100 * most_in_time(arrivals_of(played, one), profile, fleet) for one in runs]
        text, value = told(bounds, f"{words}: no scheduler has more in time than")
        found.append(Row(text, None, value, " %"))
        for place, name in enumerate(names):
            of_row = results[place :: len(names)]
            for what, aim, values, unit in (
                ("in time", _AIM, [100 * one.report.attainment for one in of_row], " %"),
                ("p99", None, [one.report.latency.p99_ms for one in of_row], " ms"),
                ("cold", None, [100 * (one.cold_part or 0.0) for one in of_row], " %"),
            ):
                text, value = told(values, f"{words}, {name}: {what}")
                found.append(Row(text, aim if name == "interlace" else None, value, unit))
    return Report(found)


def most_in_time(arrivals: Arrivals, profile: Profile, fleet: Fleet) -> float:
    """The part of the requests that can be in time at most, if all models are like this one.

    For windows of several lengths, the one that says most.
    """
    late = max(_least_late(arrivals, length, profile, fleet) for length in _WINDOWS_MS)
    return 1.0 - late / len(arrivals)


def _least_late(arrivals: Arrivals, length_ms: float, profile: Profile, fleet: Fleet) -> int:
    gpus, memory_bytes = len(fleet.gpus), sum(gpu.weights_bytes for gpu in fleet.gpus)
    plan = lasting(profile.layers, HostLinks())
    model_bytes = moved_bytes(profile.layers, plan)
    copy_ms = sum(profile.layers[index].copy_ms for index in plan.brought)
    batch = max(rows for rows, _ in profile.points)
    one_ms, full_ms = (profile.points[rows, 100].median_ms for rows in (1, batch))
    row_ms = (full_ms - one_ms) / (batch - 1)
    room_ms = gpus * (length_ms + _SLO_MS)
    served = ceil(memory_bytes / model_bytes) + room_ms / copy_ms  #: models, whatever is held
    late = 0
    windows = np.floor(arrivals.times_ms / length_ms).astype(int)
    for window in np.unique(windows):
        counts = sorted(Counter(arrivals.which[windows == window].tolist()).values())
        cold = sum(counts[: max(0, ceil(len(counts) - served))])  # those asked least are given up
        needed_ms = sum((one_ms - row_ms) * ceil(n / batch) + row_ms * n for n in counts)
        slow = ceil((needed_ms - room_ms) / one_ms) if needed_ms > room_ms else 0
        late += max(cold, slow)
    return late


if __name__ == "__main__":
    main(azure)
