"""A thousand models on four GPUs, asked as functions are in Azure's cloud, within 100 ms.

BERT-Base in FP16 on simulated H100, a model on one GPU; the sample of functions that is public and
a day drawn from it (`azure_trace.py`). Beside it stands what no scheduler exceeds here: what comes
in a window is answered until an SLO after it, or late, and until then GPUs execute and links copy
only so much, whatever is held when it begins, and whoever knows the future.
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from pathlib import Path
from typing import Annotated, Final

import numpy as np

from bench.cold.azure_trace import DAY, TRACE, azure_arrivals
from bench.cold.machines import bert_on_h100, h100s
from bench.cold.playing import Seeds, cold_run, told, with_cold
from bench.harness import Report, Row, main
from interlace.core.hardware import Fleet
from interlace.core.loading import HostLinks
from interlace.core.profile import Profile
from interlace.policy.cold_starts.frontier import lasting, moved_bytes
from interlace.sim.arrivals import Arrivals

_SLO_MS: Final = 100.0
_WINDOWS_MS: Final = (50.0, 200.0, 1000.0, 5000.0, 30_000.0)
_AIM: Final = 99.99


def azure(
    *,
    trace: Annotated[str, "calls by function and minute"] = TRACE,
    models: Annotated[int, "BERT-Base"] = 1000,
    gpus: Annotated[int, "simulated H100"] = 4,
    memory_gb: Annotated[float, "of each GPU, for weights"] = 16.0,
    rate_rps: Annotated[float, "on average"] = 500.0,
    minutes: Annotated[int, "played"] = 2,
    seeds: Seeds = 2,
    rows: Annotated[str, "answers to cold starts"] = "pipeswitch,deepplan-dha,interlace",
) -> Report:
    """In time, p99 and cold requests by trace and answer, and the bound of each trace."""
    names = [f"bert-{place}" for place in range(models)]
    profiles = dict.fromkeys(names, bert_on_h100())
    fleet = h100s(gpus, int(memory_gb * 1e9))
    found: list[Row] = []
    for words, functions in (("sample", 0), ("day", DAY)):
        traces = [
            azure_arrivals(Path(trace), names, rate_rps, minutes, functions, seed)
            for seed in range(seeds)
        ]
        bounds = [100 * most_in_time(one, bert_on_h100(), fleet) for one in traces]
        text, value = told(bounds, f"{words}: no scheduler has more in time than")
        found.append(Row(text, None, value, " %"))
        for name in rows.split(","):
            runs = [cold_run(with_cold(name), fleet, profiles, one, _SLO_MS) for one in traces]
            for what, aim, values, unit in (
                ("in time", _AIM, [100 * one.in_slo for one in runs], " %"),
                ("p99", None, [one.p99_ms for one in runs], " ms"),
                ("cold", None, [100 * one.cold_part for one in runs], " %"),
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
