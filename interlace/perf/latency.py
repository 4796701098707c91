"""Latency, throughput and the largest batch under an SLO, interpolated between measured points."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from interlace.core.profile import Point, Profile

#: What a larger batch must gain in throughput to be worth its latency.
_WORTH: Final = 1.05

Quantile = Literal["median_ms", "p95_ms", "p99_ms"]


@dataclass(frozen=True, slots=True)
class Surface:
    """L(b, p) of gpulet (section 4.3, Table 2): latency in ms over batch rows and share.

    ``curves`` maps a measured share to its ascending (batch, ms) points, made monotone in the
    batch. A share between two measured ones takes the smaller's curve, which never promises more
    than was seen; a share below the smallest measured one is unknown.
    """

    curves: Mapping[int, tuple[tuple[int, float], ...]]

    @property
    def shares_pct(self) -> tuple[int, ...]:
        return tuple(sorted(self.curves))

    def at_share(self, share_pct: int) -> tuple[tuple[int, float], ...]:
        """The curve that holds at ``share_pct``.

        Raises:
            ValueError: the share is smaller than any that was measured.
        """
        known = [share for share in self.curves if share <= share_pct]
        if not known:
            raise ValueError(f"no latency was measured at or below a share of {share_pct} %")
        return self.curves[max(known)]

    def latency_ms(self, batch: int, share_pct: int) -> float:
        """L(batch, share): linear between measured batches, and beyond the last along its slope."""
        curve = self.at_share(share_pct)
        index = bisect_left(curve, (batch, 0.0))
        if index < len(curve) and curve[index][0] == batch:
            return curve[index][1]
        if index == 0:
            return curve[0][1]
        if index == len(curve):
            return _beyond(curve, batch)
        (low, low_ms), (high, high_ms) = curve[index - 1], curve[index]
        return low_ms + (high_ms - low_ms) * (batch - low) / (high - low)

    def largest_batch(self, limit_ms: float, share_pct: int, max_batch: int) -> int:
        """Largest batch up to ``max_batch`` with L(b, share) <= ``limit_ms``; 0 if there is none.

        This is Batch-Latency of the primitives paper (section IV) and line 20 of gpulet's
        Algorithm 1.
        """
        low, high = 0, max_batch
        while low < high:
            middle = (low + high + 1) // 2
            if self.latency_ms(middle, share_pct) <= limit_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def throughput_rps(self, batch: int, share_pct: int) -> float:
        """Rows per second when batches of that size run back to back."""
        return 1000.0 * batch / self.latency_ms(batch, share_pct)

    def best_batch(self, limit_ms: float, share_pct: int, max_batch: int) -> int:
        """The batch of highest throughput among those within ``limit_ms``; 0 if there is none.

        Gains under 5 % go to the smaller batch: waiting for company must pay.
        """
        best, best_rps = 0, 0.0
        for batch in range(1, self.largest_batch(limit_ms, share_pct, max_batch) + 1):
            rps = self.throughput_rps(batch, share_pct)
            if rps > best_rps * _WORTH:
                best, best_rps = batch, rps
        return best


def surface(profile: Profile, quantile: Quantile = "p95_ms") -> Surface:
    """The latency surface of a profile at one quantile.

    Raises:
        ValueError: the profile holds no points.
    """
    if not profile.points:
        raise ValueError(f"the profile of {profile.model} holds no measured points")
    by_share: dict[int, list[tuple[int, float]]] = {}
    for (batch, share_pct), point in sorted(profile.points.items()):
        by_share.setdefault(share_pct, []).append((batch, _quantile(point, quantile)))
    return Surface({share: _monotone(points) for share, points in by_share.items()})


def _quantile(point: Point, quantile: Quantile) -> float:
    match quantile:
        case "median_ms":
            return point.median_ms
        case "p95_ms":
            return point.p95_ms
        case "p99_ms":
            return point.p99_ms


def _monotone(points: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    # Noise can make a larger batch look faster; a planner that believed it would pad batches.
    high, curve = 0.0, []
    for batch, latency_ms in points:
        high = max(high, latency_ms)
        curve.append((batch, high))
    return tuple(curve)


def _beyond(curve: tuple[tuple[int, float], ...], batch: int) -> float:
    last, last_ms = curve[-1]
    if len(curve) == 1:
        return last_ms * batch / last
    before, before_ms = curve[-2]
    return last_ms + (last_ms - before_ms) * (batch - last) / (last - before)
