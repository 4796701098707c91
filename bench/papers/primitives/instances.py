"""How many copies of a model at which share (GPU primitives, sections IV and VI-B)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from interlace.perf.latency import Surface

#: What one more instance must gain in throughput to be worth its memory.
_WORTH: Final = 1.05
_ALLOWANCE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Instances:
    """``count`` instances of ``share_pct`` that run batches of ``batch``; rows/s of them all."""

    count: int
    share_pct: int
    batch: int
    rows_per_s: float

    @property
    def total_pct(self) -> int:
        return self.count * self.share_pct


def batch_latency(latency: Surface, share_pct: int, until_ms: float, max_batch: int) -> int:
    """Batch-Latency: the largest batch that ends within ``until_ms`` at that share; 0 if none.

    Shares below the smallest measured have none.
    """
    if share_pct < latency.shares_pct[0]:
        return 0
    return latency.largest_batch(until_ms, share_pct, max_batch)


def multi_model(
    latency: Surface,
    shares_pct: Sequence[int],
    deadline_ms: float,
    max_batch: int,
    rows_per_s: float | None = None,
    room_pct: int = 100,
) -> Instances | None:
    """Multi-Model: instances and their share in ``room_pct`` of unused accelerator.

    Each runs back to back the batch of highest throughput that ends within ``deadline_ms``. With a
    rate, the least part of the accelerator that serves it; without one, or if it cannot be served,
    the highest throughput. An instance more must gain 5 %, since it takes memory. ``None`` if no
    share meets the deadline.
    """
    offers = [
        offer
        for share in sorted(shares_pct, reverse=True)
        if latency.shares_pct[0] <= share <= room_pct
        for offer in _offers(latency, share, deadline_ms, max_batch, room_pct // share)
    ]
    if rows_per_s is not None:
        enough = [one for one in offers if one.rows_per_s >= rows_per_s * (1 - _ALLOWANCE)]
        if enough:
            return min(enough, key=lambda one: (one.total_pct, one.count))
    best: Instances | None = None
    for one in sorted(offers, key=lambda one: (one.count, one.total_pct)):
        if best is None or one.rows_per_s > best.rows_per_s * (
            _WORTH if one.count > best.count else 1
        ):
            best = one
    return best


def _offers(
    latency: Surface, share_pct: int, deadline_ms: float, max_batch: int, most: int
) -> list[Instances]:
    batch = latency.best_batch(deadline_ms, share_pct, max_batch)
    if batch == 0:
        return []
    alone_rows_per_s = latency.throughput_rows_per_s(batch, share_pct)
    return [Instances(n, share_pct, batch, n * alone_rows_per_s) for n in range(1, most + 1)]
