"""What a run was like for apps: in time as a whole or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from interlace.core.request import Outcome
from interlace.sim.pipeline.served import AppServed
from interlace.sim.record import RunRecord
from interlace.sim.report.latency import ANSWERED


@dataclass(frozen=True, slots=True)
class AppFigures:
    """One app's run. Goodput counts the app's requests whose last answer was in time; every other
    outcome is a violation. Latency is from arrival to last answer, NaN if none was answered."""

    requests: int
    goodput_rps: float
    attainment: float
    outcomes: Mapping[str, int]
    p50_ms: float
    p99_ms: float


def app_figures(record: RunRecord) -> dict[str, AppFigures]:
    """The figures of every app in a record, by name."""
    by_app: dict[str, list[AppServed]] = {}
    for one in record.apps:
        by_app.setdefault(one.app, []).append(one)
    seconds = (record.until_ms - record.from_ms) / 1000.0
    return {name: _figures(by_app[name], seconds) for name in sorted(by_app)}


def _figures(served: list[AppServed], seconds: float) -> AppFigures:
    counts = Counter(one.outcome for one in served)
    taken = [one.answered_ms - one.arrived_ms for one in served if one.outcome in ANSWERED]
    p50_ms, p99_ms = np.percentile(taken or [np.nan], [50, 99]).tolist()
    return AppFigures(
        len(served),
        counts[Outcome.OK] / seconds,
        counts[Outcome.OK] / len(served),
        {outcome.value: count for outcome, count in counts.items()},
        p50_ms,
        p99_ms,
    )
