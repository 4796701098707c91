"""Which batch sizes get a graph of their own; others run padded in the next larger one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from interlace.perf.latency import interpolated

#: Graphs a model has on one lane at most: each takes memory and time to capture.
BUCKETS_MAX: Final = 8
#: Time that padding may add, as a part of what the batch would take in a graph of its own.
WASTE_MAX: Final = 0.25
_PRECISION: Final = 1e-6


def choose_buckets(
    max_rows: int,
    latency_ms: Mapping[int, float] | None = None,
    waste: float = WASTE_MAX,
    most: int = BUCKETS_MAX,
) -> tuple[int, ...]:
    """As few batch sizes as will do, ascending, the last one ``max_rows``.

    ``latency_ms`` is the profile at some batch sizes; without one, time is taken to grow with the
    rows. A batch loses at most the part ``waste`` of its time to padding; if that takes more than
    ``most`` graphs, at most the least part that ``most`` graphs allow.
    """
    cost = _costs(max_rows, latency_ms or {})
    buckets = _cover(cost, waste)
    if len(buckets) <= most:
        return buckets
    least, enough = waste, cost[-1] / cost[0]
    while enough - least > _PRECISION * enough:
        middle = (least + enough) / 2
        least, enough = (least, middle) if len(_cover(cost, middle)) <= most else (middle, enough)
    return _cover(cost, enough)


def bucket_for(buckets: Sequence[int], rows: int) -> int | None:
    """The place of the smallest bucket that holds ``rows``; ``None`` if none does."""
    place = bisect_left(buckets, rows)
    return place if place < len(buckets) else None


def _cover(cost: Sequence[float], waste: float) -> tuple[int, ...]:
    """From the top: each bucket reaches down as far as it may. No fewer can do (exchange)."""
    buckets = []
    rows = len(cost)
    while rows:
        buckets.append(rows)
        most_ms = cost[rows - 1]
        while rows and most_ms <= cost[rows - 1] * (1 + waste + 1e-12):
            rows -= 1
    return tuple(reversed(buckets))


def _costs(max_rows: int, latency_ms: Mapping[int, float]) -> list[float]:
    """Time of 1 to ``max_rows`` rows, never falling: straight lines between what was measured."""
    points = sorted((rows, ms) for rows, ms in latency_ms.items() if rows > 0 and ms > 0)
    if not points:
        return [float(rows) for rows in range(1, max_rows + 1)]
    batches, latencies = tuple(rows for rows, _ in points), tuple(ms for _, ms in points)
    known = batches, latencies, latencies[-1] / batches[-1]
    return list(accumulate((interpolated(rows, *known) for rows in range(1, max_rows + 1)), max))
