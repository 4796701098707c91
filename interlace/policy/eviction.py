"""Which weights leave when memory is short: whole models by age, or parts of models by worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace

from interlace.policy.cold_curve import CurvePart
from interlace.policy.cold_policy import Holding


def least_recently_used(
    need_bytes: int, holdings: Iterable[Holding], now_ms: float
) -> list[tuple[str, tuple[int, ...]]]:
    """Whole models by the time of their last start, the longest idle first."""
    idle = [(one.last_start_ms, one.model, one) for one in holdings if one.may_leave and one.held]
    heapify(idle)
    gone: list[tuple[str, tuple[int, ...]]] = []
    while need_bytes > 0 and idle:
        _, model, one = heappop(idle)
        layers = tuple(sorted(one.held))
        need_bytes -= one.curve.nbytes(layers)
        gone.append((model, layers))
    return gone


def by_worth(
    need_bytes: int, holdings: Iterable[Holding], now_ms: float
) -> list[tuple[str, tuple[int, ...]]]:
    """The parts whose absence costs least: rate x milliseconds saved a byte, along each curve.

    What is popular stays whole, of what is asked alike all lose equal parts. No part goes without
    which enough would be free.
    """
    gone: list[tuple[str, CurvePart]] = []
    freed_bytes = 0
    for _, model, part in cheapest_first(holdings) if need_bytes > 0 else ():
        gone.append((model, part))
        freed_bytes += part.nbytes
        if freed_bytes >= need_bytes:
            break
    return list(_needed(gone, freed_bytes - need_bytes))[::-1]


def cheapest_first(holdings: Iterable[Holding]) -> Iterator[tuple[float, str, CurvePart]]:
    """All that may leave, part by part, with what each saves: ms a second and byte."""
    leaving = [
        _next_part(one, one.curve.leaving(one.held), 0)
        for one in holdings
        if one.may_leave and one.held
    ]
    heapify(leaving)
    while leaving:
        worth, *_, place, parts, one = leaving[0]
        yield worth, one.model, parts[place]
        if place + 1 < len(parts):
            heapreplace(leaving, _next_part(one, parts, place + 1))
        else:
            heappop(leaving)


#: Worth of a model's next part, parts behind it, last start, name; which part, all of them, whose.
_Leaving = tuple[float, int, float, str, int, tuple[CurvePart, ...], Holding]


def _next_part(one: Holding, parts: tuple[CurvePart, ...], place: int) -> _Leaving:
    """Parts that are worth less go first; of those alike, of whom has more, then the idlest."""
    worth = one.rate_rps * parts[place].worth_ms
    return worth, place - len(parts), one.last_start_ms, one.model, place, parts, one


def _needed(
    gone: Sequence[tuple[str, CurvePart]], spare_bytes: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Those without which too little is free, from the last to the first."""
    deeper: set[str] = set()
    for model, part in reversed(gone):
        if model not in deeper and part.nbytes <= spare_bytes:
            spare_bytes -= part.nbytes
            continue
        deeper.add(model)
        yield model, part.layers
