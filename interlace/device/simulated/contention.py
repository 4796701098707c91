"""What becomes of batches that together ask for more of an accelerator than there is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from interlace.perf.latency import Surface

#: A model needs the smallest share at which it is within this factor of its best latency.
_ENOUGH = 1.05


class RunningBatch(NamedTuple):
    """A batch that runs: its rows, the share it may use, and its latencies alone."""

    model: str
    rows: int
    share_pct: int
    latency: Surface


#: Speeds, each in (0, 1] of that alone, of batches that run together.
Contention = Callable[[Sequence[RunningBatch]], Sequence[float]]


def equal_rows(running: Sequence[RunningBatch]) -> Sequence[float]:
    """Speeds, each in (0, 1] of that alone, of batches whose shares add up to more than 100.

    Every row in flight has an equal part of what its model gets; needs share the accelerator.

    Workers of one model without limits that run together take what one batch of all their rows
    takes: E2bird's hypothesis of equal resource sharing (section 7.2), confirmed by its Figure 7 up
    to 64 workers. What switching between more streams costs (128 workers there, single rows of
    Figure 12) it shows without a law.

    Between models, and between partitions with limits, the hardware is first come, first served:
    each gets SMs in proportion to what it could use, the smallest share at which it is nearly as
    fast as alone. Where those needs fit together nobody is slowed, as with two models on D-STACK's
    default MPS (Figure 11a); where limits exceed 100 % latency climbs and throughput does not, as
    in the primitives paper's Figures 12a and 12b.
    """
    if len(running) == 1:
        return (1.0,)
    parts = _allotted(running)
    speeds: list[float] = []
    for index, one in enumerate(running):
        group, share_pct = parts[_key(index, one)]
        all_ms = _latency_ms(group.latency, group.rows, share_pct)
        alone_ms = _latency_ms(one.latency, one.rows, one.share_pct)
        speeds.append(min(1.0, alone_ms / all_ms))
    return speeds


def _allotted(
    running: Sequence[RunningBatch],
) -> Mapping[tuple[str, int], tuple[RunningBatch, float]]:
    """Each group as one batch, and the share it gets: its own, unless needs exceed the whole."""
    together = _together(running)
    needs_pct = {key: _need_pct(busy) for key, busy in together.items()}
    total_pct = sum(needs_pct.values())
    if total_pct <= 100.0:
        return {key: (busy, busy.share_pct) for key, busy in together.items()}
    return {key: (busy, needs_pct[key] * 100.0 / total_pct) for key, busy in together.items()}


def _key(index: int, one: RunningBatch) -> tuple[str, int]:
    """Workers of a model without limits count as one; one with a limit counts alone."""
    return one.model, index if one.share_pct < 100 else -1


def _together(running: Sequence[RunningBatch]) -> Mapping[tuple[str, int], RunningBatch]:
    """The batches of each group as one, rows added up."""
    groups: dict[tuple[str, int], RunningBatch] = {}
    for index, one in enumerate(running):
        key = _key(index, one)
        seen = groups.get(key)
        groups[key] = one if seen is None else seen._replace(rows=seen.rows + one.rows)
    return groups


def _need_pct(busy: RunningBatch) -> float:
    """The smallest share, in steps of 5, at which a batch is nearly as fast as in its own."""
    best_ms = _latency_ms(busy.latency, busy.rows, busy.share_pct)
    for share_pct in range(5, busy.share_pct, 5):
        if _latency_ms(busy.latency, busy.rows, share_pct) <= best_ms * _ENOUGH:
            return float(share_pct)
    return float(busy.share_pct)


def _latency_ms(latency: Surface, rows: int, share_pct: float) -> float:
    """The latency at any share: a line between measured ones, more in proportion below them all.

    Planners are promised nothing between measured shares; hardware does not step there.
    """
    shares = latency.shares_pct
    if share_pct <= shares[0]:
        return latency.latency_ms(rows, shares[0]) * shares[0] / share_pct
    if share_pct >= shares[-1]:
        return latency.latency_ms(rows, shares[-1])
    above = bisect_left(shares, share_pct)
    low, high = shares[above - 1], shares[above]
    slow_ms, fast_ms = latency.latency_ms(rows, low), latency.latency_ms(rows, high)
    return slow_ms + (fast_ms - slow_ms) * (share_pct - low) / (high - low)
