"""Latency, throughput and the largest batch under an SLO, interpolated between measured points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.curves import Curve, interpolated, last_slope, monotone

#: What a larger batch must gain in throughput to be worth its latency.
_WORTH: Final = 1.05

Quantile = Literal["median_ms", "p95_ms", "p99_ms"]


@dataclass(frozen=True, slots=True)
class Surface:
    """L(b, p) of gpulet (section 4.3, Table 2): latency in ms over batch rows and share.

    ``curves`` maps a measured share to its ascending (batch, ms) points, made monotone by
    ``surface``. Nothing is promised that the measured neighbours do not justify: a share between
    two measured ones takes the smaller's curve, a share below the smallest measured is unknown,
    between two batches latency is linear, and beyond the largest a row costs at least what it
    costs there, so that no throughput is promised that was not seen. ``measured`` says which batch
    that is for each share, where larger shares have lent a curve more points.
    """

    curves: Mapping[int, Curve]
    measured: Mapping[int, int] = field(default_factory=dict)
    _shares: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _batches: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    _latencies: tuple[tuple[float, ...], ...] = field(init=False, repr=False, compare=False)
    _slopes: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shares = tuple(sorted(self.curves))
        curves = [self.curves[share] for share in shares]
        slopes: list[float] = []
        for curve in reversed(curves):  # a smaller share is nowhere faster, beyond the last either
            slopes.append(max(last_slope(curve), slopes[-1] if slopes else 0.0))
        object.__setattr__(self, "_shares", shares)
        object.__setattr__(self, "_batches", tuple(tuple(b for b, _ in c) for c in curves))
        object.__setattr__(self, "_latencies", tuple(tuple(ms for _, ms in c) for c in curves))
        object.__setattr__(self, "_slopes", tuple(reversed(slopes)))

    @property
    def shares_pct(self) -> tuple[int, ...]:
        return self._shares

    def at_share(self, share_pct: int) -> Curve:
        """The curve that holds at ``share_pct``.

        Raises:
            ValueError: the share is smaller than any that was measured.
        """
        return self.curves[self._shares[self._row(share_pct)]]

    def measured_rows(self, share_pct: int) -> int:
        """The largest batch that ran at that share or a smaller one: no larger one is known to.

        Raises:
            ValueError: the share is smaller than any that was measured.
        """
        share = self._shares[self._row(share_pct)]
        return self.measured.get(share, self.curves[share][-1][0])

    def latency_ms(self, batch: int, share_pct: int) -> float:
        """L(batch, share) in ms.

        Raises:
            ValueError: the share is smaller than any that was measured.
        """
        row = self._row(share_pct)
        return interpolated(batch, self._batches[row], self._latencies[row], self._slopes[row])

    def table(self, share_pct: int, max_batch: int) -> tuple[float, ...]:
        """L(0) to L(max_batch) at that share, in ms, with L(0) = 0.

        Raises:
            ValueError: the share is smaller than any that was measured.
        """
        row = self._row(share_pct)
        known = self._batches[row], self._latencies[row], self._slopes[row]
        return (0.0, *(interpolated(batch, *known) for batch in range(1, max_batch + 1)))

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

    def throughput_rows_per_s(self, batch: int, share_pct: int) -> float:
        """Rows per second when batches of that size run back to back."""
        return 1000.0 * batch / self.latency_ms(batch, share_pct)

    def best_batch(self, limit_ms: float, share_pct: int, max_batch: int) -> int:
        """The batch of highest throughput among those within ``limit_ms``; 0 if there is none.

        Gains under 5 % go to the smaller batch: waiting for a larger batch must pay.
        """
        best, best_rows_per_s = 0, 0.0
        for batch in range(1, self.largest_batch(limit_ms, share_pct, max_batch) + 1):
            rps = self.throughput_rows_per_s(batch, share_pct)
            if rps > best_rows_per_s * _WORTH:
                best, best_rows_per_s = batch, rps
        return best

    def _row(self, share_pct: int) -> int:
        row = bisect_right(self._shares, share_pct) - 1
        if row < 0:
            raise ValueError(f"no latency was measured at or below a share of {share_pct} %")
        return row


def surface(profile: Profile, quantile: Quantile = "p95_ms") -> Surface:
    """The latency surface of a profile at one quantile, monotone in the batch and in the share.

    Noise can make a larger batch or a smaller share look faster. Each latency is then raised to
    that of the smaller batches and the larger shares (a running maximum). The other way, lowering
    L(b) to that of a larger batch that was faster, since b rows could be padded up to it, would
    promise what the engine does not do: it runs the rows it has.

    Raises:
        ValueError: the profile holds no points.
    """
    if not profile.points:
        raise ValueError(f"the profile of {profile.model} holds no measured points")
    by_share: dict[int, list[tuple[int, float]]] = {}
    for (batch, share_pct), point in sorted(profile.points.items()):
        by_share.setdefault(share_pct, []).append((batch, _quantile(point, quantile)))
    measured: dict[int, int] = {}
    largest = 0
    for share_pct, points in sorted(by_share.items()):
        largest = measured[share_pct] = max(largest, points[-1][0])
    return Surface(monotone(by_share), measured)


def _quantile(point: LatencyPoint, quantile: Quantile) -> float:
    match quantile:
        case "median_ms":
            return point.median_ms
        case "p95_ms":
            return point.p95_ms
        case "p99_ms":
            return point.p99_ms
