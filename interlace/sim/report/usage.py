"""How busy accelerators were, and how many there were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from interlace.sim.record import RunRecord


def utilisation(record: RunRecord) -> Mapping[str, float]:
    """Part of each accelerator that ran something: share times time, within the measured span.

    Of overlapping partitions what runs together counts as what it asks for, at most 100 % at a
    time.
    """
    length_ms = record.until_ms - record.from_ms
    return {gpu: _busy_ms(record, gpu) / length_ms for gpu in record.gpus}


def _busy_ms(record: RunRecord, gpu: str) -> float:
    """Share-weighted busy time of one accelerator, in ms."""
    steps: list[tuple[float, int]] = []
    for run in record.executions:
        begin_ms, end_ms = max(run.started_ms, record.from_ms), min(run.ended_ms, record.until_ms)
        if run.gpu == gpu and end_ms > begin_ms:
            steps += [(begin_ms, run.share_pct), (end_ms, -run.share_pct)]
    steps.sort()
    total = since_ms = 0.0
    running_pct = 0
    for at_ms, change_pct in steps:
        total += min(running_pct, 100) / 100.0 * (at_ms - since_ms)
        since_ms, running_pct = at_ms, running_pct + change_pct
    return total


def gpus_over_time(record: RunRecord) -> Sequence[tuple[float, int]]:
    """Steps (ms from the start of the measured span, accelerators that hold a partition)."""
    changes: list[tuple[float, int, str]] = []
    for span in record.spans:
        changes += [(span.carved_ms, 1, span.gpu), (span.released_ms, -1, span.gpu)]
    held: dict[str, int] = {}
    steps: list[tuple[float, int]] = []
    for at_ms, change, gpu in sorted(changes):
        if at_ms >= record.until_ms:
            break
        held[gpu] = held.get(gpu, 0) + change
        count = sum(1 for partitions in held.values() if partitions > 0)
        from_start_ms = max(0.0, at_ms - record.from_ms)
        if steps and steps[-1][0] == from_start_ms:
            steps.pop()
        if not steps or steps[-1][1] != count:
            steps.append((from_start_ms, count))
    return steps


def mean_gpus(record: RunRecord) -> float:
    """Accelerators that held a partition, on average over the measured span."""
    length_ms = record.until_ms - record.from_ms
    steps = [*gpus_over_time(record), (length_ms, 0)]
    return sum(n * (later - at) for (at, n), (later, _) in pairwise(steps)) / length_ms
