"""Which bytes of each model stay when memory is short: a knapsack priced by rate and time saved.

A model's *cold curve* gives the end of its cold start over the bytes that are kept. These are of
the layers that would be copied first, since copies behind them hide behind execution. The worth of
a byte is the time it saves times the request rate. That time is of the cold start, and of the link,
for which loads behind it wait. Where popularity is steep, whole models win; where it is flat, equal
parts of all do: at a tie the model that has kept the least goes first. Were curves divisible,
taking the edges of their convex hulls by worth would be optimal (the fractional knapsack): the
answer comes with that bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from interlace.policy.cold_curve import ColdPoint, hull, worths_ms


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


def residency(
    curves: Mapping[str, Sequence[ColdPoint]], rates_rps: Mapping[str, float], memory_bytes: int
) -> Residency:
    """What to keep of each model in so much memory, by worth at these rates of requests."""
    at = dict.fromkeys(curves, 0)
    worths = {name: worths_ms(curve) for name, curve in curves.items()}
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


def _bound(
    curves: Mapping[str, Sequence[ColdPoint]], rates_rps: Mapping[str, float], memory_bytes: int
) -> float:
    edges: list[tuple[float, int]] = []
    for name, curve in curves.items():
        for first, last in hull(curve):
            nbytes = curve[last].kept_bytes - curve[first].kept_bytes
            saved_ms = curve[first].price_ms - curve[last].price_ms
            edges.append((rates_rps[name] * saved_ms / nbytes, nbytes))
    saved, left_bytes = 0.0, memory_bytes
    for worth, nbytes in sorted(edges, reverse=True):
        taken = min(nbytes, left_bytes)
        saved += worth * taken
        left_bytes -= taken
    return saved
