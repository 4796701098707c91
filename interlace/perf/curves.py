"""Curves of latency over batches: lines between points, made monotone in batch and share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

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
