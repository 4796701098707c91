"""What a choice of batch sizes loses to padding: the measure that buckets are held against."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from interlace.perf.buckets import _costs


def padding_waste(buckets: Sequence[int], latency_ms: Mapping[int, float] | None = None) -> float:
    """The largest part of its time that a batch of up to ``buckets[-1]`` rows loses to padding."""
    cost = _costs(buckets[-1], latency_ms or {})
    held = (buckets[bisect_left(buckets, rows)] for rows in range(1, len(cost) + 1))
    return max(cost[bucket - 1] / one - 1 for bucket, one in zip(held, cost, strict=True))
