"""Latency, throughput and the largest batch under an SLO, interpolated between measured points."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal

from interlace.core.profile import LatencyPoint, Profile

#: Ascending (batch, ms) points.
Curve = tuple[tuple[int, float], ...]


def monotone(by_share: Mapping[int, list[tuple[int, float]]]) -> dict[int, Curve]:
    """Curves of all shares: first each rises with the batch, then none is below a larger share."""
    curves: dict[int, Curve] = {}
    smaller: Curve = ()
    for share in sorted(by_share):
        smaller = curves[share] = _extended(_rising(by_share[share]), smaller)
    larger: Curve = ()
    for share in sorted(by_share, reverse=True):
        larger = curves[share] = _above(curves[share], larger)
    return curves


def _rising(points: list[tuple[int, float]]) -> Curve:
    high, curve = 0.0, []
    for batch, latency_ms in points:
        high = max(high, latency_ms)
        curve.append((batch, high))
    return tuple(curve)


def _extended(curve: Curve, smaller: Curve) -> Curve:
    """The curve with batches that only a smaller share was measured at: no slower than there."""
    last, last_ms = curve[-1]
    if not smaller or smaller[-1][0] <= last:
        return curve
    beyond = [(batch, ms) for batch, ms in smaller if batch > last]
    own = _at(curve, [batch for batch, _ in beyond])
    more = [
        (batch, max(last_ms, min(ms, own_ms)))
        for (batch, ms), own_ms in zip(beyond, own, strict=True)
    ]
    return (*curve, *more)


def _above(curve: Curve, floor: Curve) -> Curve:
    """The curve where it is above ``floor``, and ``floor`` elsewhere."""
    if not floor or _everywhere(curve, floor):
        return curve
    batches = sorted({batch for batch, _ in curve} | {batch for batch, _ in floor})
    both = list(zip(batches, _at(curve, batches), _at(floor, batches), strict=True))
    if all(own_ms >= floor_ms for _, own_ms, floor_ms in both):
        return curve
    return tuple((batch, max(own_ms, floor_ms)) for batch, own_ms, floor_ms in both)


def _everywhere(curve: Curve, floor: Curve) -> bool:
    """True if both have the same batches, as most have, and ``floor`` is above at none."""
    if len(curve) != len(floor):
        return False
    return all(
        batch == other and ms >= floor_ms
        for (batch, ms), (other, floor_ms) in zip(curve, floor, strict=True)
    )


def _at(curve: Curve, asked: Sequence[int]) -> list[float]:
    batches, latencies = tuple(b for b, _ in curve), tuple(ms for _, ms in curve)
    slope = last_slope(curve)
    return [interpolated(batch, batches, latencies, slope) for batch in asked]


def interpolated(
    batch: int, batches: tuple[int, ...], latencies: tuple[float, ...], slope: float
) -> float:
    """Latency in ms on the line between two points, or beyond the last with ``slope`` a row."""
    index = bisect_left(batches, batch)
    if index == len(batches):
        return latencies[-1] + slope * (batch - batches[-1])
    if index == 0 or batches[index] == batch:
        return latencies[index]
    low, low_ms = batches[index - 1], latencies[index - 1]
    return low_ms + (latencies[index] - low_ms) * (batch - low) / (batches[index] - low)


def last_slope(curve: Curve) -> float:
    """What a row beyond the largest batch costs: as in the last step, and no less than there."""
    last, last_ms = curve[-1]
    if len(curve) == 1:
        return last_ms / last
    before, before_ms = curve[-2]
    return max((last_ms - before_ms) / (last - before), last_ms / last)


#: What a larger batch must gain in throughput to be worth its latency.
_WORTH: Final = 1.05

#: A point so many times above one that should be slower was taken while the machine was busy. Of
#: 438 points of 9 models on a V100 none is over 1.2 times such another.
_DOUBTFUL: Final = 2.0

Quantile = Literal["median_ms", "p95_ms", "p99_ms"]


@dataclass(frozen=True, slots=True)
class Surface:
    """L(b, p) of gpulet (section 4.3, Table 2): latency in ms over batch rows and share.

    ``curves`` maps a measured share to its ascending (batch, ms) points, made monotone by
    ``surface``. The surface promises only what measured neighbours justify. A share between two
    measured ones takes the smaller's curve; a share below the smallest measured is unknown. Between
    two batches latency is linear. Beyond the largest batch a row costs at least what it costs
    there, so that no throughput is promised that was not measured. ``measured`` has that batch for
    each share, where larger shares have lent a curve more points.
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

    A point that is ``doubtful`` at that quantile is taken for what puts it in doubt. Noise can make
    a larger batch or a smaller share look faster. Each latency is then raised to that of the
    smaller batches and the larger shares (a running maximum). L(b) is not lowered to that of a
    larger batch that was a little faster. This would count on b rows padded up to that batch, but
    the engine runs the rows it has.

    Raises:
        ValueError: the profile holds no points.
    """
    if not profile.points:
        raise ValueError(f"the profile of {profile.model} holds no measured points")
    by_share: dict[int, list[tuple[int, float]]] = {}
    for (batch, share_pct), ms in sorted(believed_ms(profile.points, quantile).items()):
        by_share.setdefault(share_pct, []).append((batch, ms))
    measured: dict[int, int] = {}
    largest = 0
    for share_pct, points in sorted(by_share.items()):
        largest = measured[share_pct] = max(largest, points[-1][0])
    return Surface(monotone(by_share), measured)


def believed_ms(
    points: Mapping[tuple[int, int], LatencyPoint], quantile: Quantile
) -> dict[tuple[int, int], float]:
    """Each point's latency at a quantile, in ms; of one that is ``doubtful`` what is put for it."""
    measured = {key: _quantile(point, quantile) for key, point in points.items()}
    return measured | doubtful(points, quantile)


def doubtful(
    points: Mapping[tuple[int, int], LatencyPoint], quantile: Quantile = "median_ms"
) -> dict[tuple[int, int], float]:
    """Points, as (batch, share), far slower than some with as many rows or more and no more share.

    The accelerator did something else meanwhile: a share does no less than a smaller one, and rows
    more take no less. Each with the shortest of those latencies, in ms, which its own is below.
    """
    sizes = sorted({batch for batch, _ in points}, reverse=True)
    least_ms: dict[int, float] = {}
    found: dict[tuple[int, int], float] = {}
    for share_pct in sorted({share for _, share in points}):
        shortest_ms = inf
        for batch in sizes:
            point = points.get((batch, share_pct))
            own_ms = inf if point is None else _quantile(point, quantile)
            least_ms[batch] = min(least_ms.get(batch, inf), own_ms)
            shortest_ms = min(shortest_ms, least_ms[batch])
            if point is not None and own_ms > _DOUBTFUL * shortest_ms:
                found[batch, share_pct] = shortest_ms
    return found


def doubts(name: str, profile: Profile) -> str:
    """What is in doubt of a profile, in words; empty if nothing is."""
    found = sorted(doubtful(profile.points))
    if not found:
        return ""
    some = ", ".join(f"batch {batch} at {share} %" for batch, share in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (
        f"{name}: {some}{more} took far longer than as many rows on a smaller share, or more rows: "
        "taken for as fast as those, since the machine was busy; measure it again on a quiet one"
    )


def _quantile(point: LatencyPoint, quantile: Quantile) -> float:
    match quantile:
        case "median_ms":
            return point.median_ms
        case "p95_ms":
            return point.p95_ms
        case "p99_ms":
            return point.p99_ms
