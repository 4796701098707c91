"""How evenly accelerator time is shared: Jain's index, and the largest gap in service."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from interlace.sim.record import Execution, RunRecord


def jain(values: Sequence[float]) -> float:
    """Jain's index, (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0


def service_ms(executions: Sequence[Execution]) -> Mapping[str, float]:
    """Accelerator time of each model: of every run, its share of the time it took."""
    total: dict[str, float] = defaultdict(float)
    for run in executions:
        total[run.model] += (run.ended_ms - run.started_ms) * run.share_pct / 100.0
    return total


def service_gap_ms(record: RunRecord) -> float:
    """The most that one model got beyond another while both had something waiting.

    VTC's measure (frontier of fairness in serving): over any stretch in which two models are both
    backlogged, the difference of what they are served. Service is entered when a run begins.
    """
    waiting = _changes(record)
    models = sorted({one.model for one in record.served})
    worst = 0.0
    for index, one in enumerate(models):
        for other in models[index + 1 :]:
            worst = max(worst, _gap_ms(one, other, record.executions, waiting))
    return worst


#: At a time, a model's number of waiting requests changes by so much.
_Change = tuple[float, int]


def _changes(record: RunRecord) -> Mapping[str, list[_Change]]:
    changes: dict[str, list[_Change]] = defaultdict(list)
    for one in record.served:
        leaves_ms = one.started_ms if one.partition else one.answered_ms
        if leaves_ms > one.arrived_ms:
            changes[one.model] += [(one.arrived_ms, 1), (leaves_ms, -1)]
    return changes


def _gap_ms(
    one: str, other: str, executions: Sequence[Execution], waiting: Mapping[str, list[_Change]]
) -> float:
    """The widest swing of the difference in service within stretches where both wait."""
    steps: list[tuple[float, int, str, float]] = []
    for name in (one, other):
        steps += [(at_ms, 0, name, float(change)) for at_ms, change in waiting.get(name, ())]
    for run in executions:
        if run.model in (one, other):
            work_ms = (run.ended_ms - run.started_ms) * run.share_pct / 100.0
            steps.append((run.started_ms, 1, run.model, work_ms))
    steps.sort(key=lambda step: step[:2])
    counts = {one: 0.0, other: 0.0}
    ahead = low = high = worst = 0.0
    for _, kind, name, value in steps:
        if kind == 0:
            both = min(counts.values()) > 0
            counts[name] += value
            if not both and min(counts.values()) > 0:
                ahead = low = high = 0.0
        elif min(counts.values()) > 0:
            ahead += value if name == one else -value
            low, high = min(low, ahead), max(high, ahead)
            worst = max(worst, high - low)
    return worst
