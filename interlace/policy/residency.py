"""Which bytes of which model stay when memory is short: a knapsack priced by rate and time saved.

A model's *cold curve* says when its cold start ends by how many bytes are kept: those of the layers
that would be copied first, since copies behind them hide behind execution. What a byte of it is
worth is what it saves times how often: milliseconds of the cold start, and of the link, for which
those behind it wait. Where popularity is steep
whole models win that way; where it is flat, equal parts of all: at a tie the one that has kept the
least goes first. Were curves divisible, taking their convex hulls' edges by worth would be the best
there is (the fractional knapsack): that bound is beside the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from interlace.core.loading import HostLinks, LoadPlan, WeightPath
from interlace.core.profile import LayerProfile
from interlace.policy.cold_starts.frontier import frontier

#: Points of a curve at most, beside its ends.
_POINTS: Final = 24


class ColdPoint(NamedTuple):
    """With the weights of so many bytes there, a cold start copies so many, and ends then.

    ``copy_ms`` is how long it has the link, or all links together.
    """

    kept_bytes: int
    copied_bytes: int
    copy_ms: float
    end_ms: float

    @property
    def price_ms(self) -> float:
        """What a request costs itself, and those that wait for the link."""
        return self.end_ms + self.copy_ms


@dataclass(frozen=True, slots=True)
class Residency:
    """What is kept of each model.

    ``saved_ms_per_s`` is what cold starts and links are spared by it, in ms a second; no choice
    saves more than ``bound_ms_per_s`` in this memory.
    """

    kept: Mapping[str, ColdPoint]
    saved_ms_per_s: float
    bound_ms_per_s: float

    @property
    def kept_bytes(self) -> int:
        return sum(point.kept_bytes for point in self.kept.values())


def cold_curve(layers: Sequence[LayerProfile], links: HostLinks) -> tuple[ColdPoint, ...]:
    """From nothing kept to all: each point keeps more than the one before, and costs less."""
    plan = frontier(layers, links)
    copied = _copied(plan)
    points = [_point(layers, plan, 0)]
    total_bytes = points[0].copied_bytes
    kept: set[int] = set()
    kept_bytes = 0
    for index in copied:
        kept.add(index)
        kept_bytes += layers[index].weights_bytes
        if kept_bytes - points[-1].kept_bytes < total_bytes / _POINTS and len(kept) < len(copied):
            continue
        one = _point(layers, frontier(layers, links, frozenset(kept)), kept_bytes)
        if one.price_ms < points[-1].price_ms:
            points.append(one)
    warm_ms = sum(layer.run_ms for layer in layers)
    whole = ColdPoint(sum(layer.weights_bytes for layer in layers), 0, 0.0, warm_ms)
    return (*points, whole) if whole.price_ms < points[-1].price_ms else tuple(points)


def _point(layers: Sequence[LayerProfile], plan: LoadPlan, kept_bytes: int) -> ColdPoint:
    copied = [layers[index] for index in _copied(plan)]
    nbytes = sum(layer.weights_bytes for layer in copied)
    return ColdPoint(kept_bytes, nbytes, sum(layer.copy_ms for layer in copied), plan.end_ms)


def _copied(plan: LoadPlan) -> list[int]:
    over = (WeightPath.COPY, WeightPath.PEER)
    return [index for index, step in enumerate(plan.steps) if step.via in over]


def least_bytes(curve: Sequence[ColdPoint], slo_ms: float) -> float:
    """What must be kept for a cold start within the SLO; infinite if it is too short even warm."""
    return min((one.kept_bytes for one in curve if one.end_ms <= slo_ms), default=inf)


def residency(
    curves: Mapping[str, Sequence[ColdPoint]], rates_rps: Mapping[str, float], memory_bytes: int
) -> Residency:
    """What to keep of each model in so much memory, by worth at these rates of requests."""
    at = dict.fromkeys(curves, 0)
    worths = {name: _worths(curve) for name, curve in curves.items()}
    left_bytes = memory_bytes
    waiting = [
        _turn(name, 0, curves[name], worths[name], rates_rps[name])
        for name in curves
        if len(curves[name]) > 1
    ]
    heapify(waiting)
    while waiting:
        name = heappop(waiting).model
        curve, place = curves[name], at[name]
        nbytes = curve[place + 1].kept_bytes - curve[place].kept_bytes
        if nbytes > left_bytes:
            continue  # others may have smaller steps
        left_bytes -= nbytes
        at[name] = place + 1
        if place + 2 < len(curve):
            heappush(waiting, _turn(name, place + 1, curve, worths[name], rates_rps[name]))
    kept = {name: curve[at[name]] for name, curve in curves.items()}
    saved = sum(
        rates_rps[name] * (curve[0].price_ms - kept[name].price_ms)
        for name, curve in curves.items()
    )
    return Residency(kept, saved, _bound(curves, rates_rps, memory_bytes))


class _Turn(NamedTuple):
    """A model's next step, in the order in which steps are taken: those worth more come first.

    Of steps worth the same, those of a model that is asked more, then of one that has kept less.
    """

    unworth: float
    unasked: float
    kept_part: float
    model: str


def _turn(
    name: str, place: int, curve: Sequence[ColdPoint], worths: Sequence[float], rate_rps: float
) -> _Turn:
    part = curve[place].kept_bytes / curve[-1].kept_bytes
    return _Turn(-rate_rps * worths[place], -rate_rps, part, name)


def _worths(curve: Sequence[ColdPoint]) -> list[float]:
    """Of each step along a curve, ms a byte of the hull's edge that it is under."""
    worths: list[float] = []
    for first, last in _hull(curve):
        begin, end = curve[first], curve[last]
        worth = (begin.price_ms - end.price_ms) / (end.kept_bytes - begin.kept_bytes)
        worths += [worth] * (last - first)
    return worths


def _hull(curve: Sequence[ColdPoint]) -> Iterator[tuple[int, int]]:
    """Edges of the lower convex hull, as places in the curve."""
    corners: list[int] = []
    for place, point in enumerate(curve):
        while len(corners) > 1 and _above(curve[corners[-2]], curve[corners[-1]], point):
            corners.pop()
        corners.append(place)
    return pairwise(corners)


def _above(first: ColdPoint, middle: ColdPoint, last: ColdPoint) -> bool:
    """Whether the middle point is not below the line between the others."""
    width, part = last.kept_bytes - first.kept_bytes, middle.kept_bytes - first.kept_bytes
    fall = first.price_ms - last.price_ms
    return (first.price_ms - middle.price_ms) * width <= fall * part


def _bound(
    curves: Mapping[str, Sequence[ColdPoint]], rates_rps: Mapping[str, float], memory_bytes: int
) -> float:
    edges: list[tuple[float, int]] = []
    for name, curve in curves.items():
        for first, last in _hull(curve):
            nbytes = curve[last].kept_bytes - curve[first].kept_bytes
            saved_ms = curve[first].price_ms - curve[last].price_ms
            edges.append((rates_rps[name] * saved_ms / nbytes, nbytes))
    saved, left_bytes = 0.0, memory_bytes
    for worth, nbytes in sorted(edges, reverse=True):
        taken = min(nbytes, left_bytes)
        saved += worth * taken
        left_bytes -= taken
    return saved
