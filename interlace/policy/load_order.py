"""Which load is next on a link, and which weights idle links prefetch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import Final

from interlace.core.loading import LoadPlan
from interlace.policy.cold_curve import CurvePart
from interlace.policy.cold_policy import Holding, LoadChoice, WaitingLoad


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


#: The part of the time that a load could wait which it may wait for company.
_PART_OF_SLACK: Final = 0.5
#: Nor does it wait for more visits than these: the first that share it save most of what is moved.
_COMPANY: Final = 1.25
#: A load that nothing can be in time for is passed over at most that many times its SLO.
_PATIENCE_SLOS: Final = 4.0


def first_come(waiting: Sequence[WaitingLoad], now_ms: float) -> LoadChoice:
    """As they came: what the papers' servers do."""
    first = min(waiting, key=lambda one: (one.first_arrival_ms, one.model), default=None)
    return LoadChoice(None if first is None else first.model)


def by_deadline(waiting: Sequence[WaitingLoad], now_ms: float) -> LoadChoice:
    """The earliest deadline of loads that can be in time, begun no sooner than it pays.

    Requests that arrive while a load waits share it, so A B A A C is served as A A A B C. A load
    that evicts others waits if another request is expected before it must begin. It waits until
    that request may have arrived, for half of the time at most, and less where other loads need the
    link behind it. Loads that are late in any case come last, but come first once they have waited
    for four times their SLO.
    """
    in_time: list[WaitingLoad] = []
    late: list[WaitingLoad] = []
    for one in waiting:
        slo_ms = one.deadline_ms - one.first_arrival_ms
        if now_ms - one.first_arrival_ms > _PATIENCE_SLOS * slo_ms:
            late.append(one)
        elif now_ms + one.end_ms <= one.deadline_ms:
            in_time.append(one)
    if late:
        return first_come(late, now_ms)
    if not in_time:
        return first_come(waiting, now_ms)
    in_time.sort(key=lambda one: (one.deadline_ms, one.model))
    latest_ms = _latest_begins_ms(in_time)
    begins_ms = [_begin_ms(one, latest) for one, latest in zip(in_time, latest_ms, strict=True)]
    ready = (one for one, begin_ms in zip(in_time, begins_ms, strict=True) if begin_ms <= now_ms)
    soonest = next(ready, None)
    if soonest is None:
        return LoadChoice(None, min(begins_ms))
    # While the most urgent one waits for company others have the link, if they end before it must.
    passes = now_ms + soonest.link_ms <= latest_ms[0]
    return LoadChoice(soonest.model if passes else in_time[0].model)


def _latest_begins_ms(waiting: Sequence[WaitingLoad]) -> list[float]:
    """When each must begin at the latest, if they follow each other by deadline."""
    latest_ms = inf
    found: list[float] = []
    for one in reversed(waiting):
        latest_ms = min(one.deadline_ms - one.end_ms, latest_ms - one.link_ms)
        found.append(latest_ms)
    return found[::-1]


def _begin_ms(one: WaitingLoad, latest_ms: float) -> float:
    """When it begins if the link is free: at once, or when it has waited for company."""
    slack_ms = latest_ms - one.first_arrival_ms
    if not one.evicts or one.rate_rps * slack_ms / 1000.0 < 1.0:
        return one.first_arrival_ms
    company_ms = 1000.0 * _COMPANY / one.rate_rps
    return one.first_arrival_ms + min(_PART_OF_SLACK * slack_ms, company_ms)


#: A prefetch must be worth this many times as much as all that is evicted for it. Rates are known
#: roughly, and weights must not be swapped back and forth on errors of an estimate.
_HYSTERESIS: Final = 4.0


def on_demand(
    free_bytes: int, holdings: Sequence[Holding], now_ms: float
) -> tuple[str, LoadPlan] | None:
    """Nothing."""
    return None


def hottest_missing(
    free_bytes: int, holdings: Sequence[Holding], now_ms: float
) -> tuple[str, LoadPlan] | None:
    """The missing part that is worth most: rate x milliseconds saved a byte."""
    best, best_worth, sure_worth, nbytes = None, 0.0, 0.0, 0
    for one in holdings:
        missing = None if one.fetching else one.curve.missing(one.held)
        if missing is None:
            continue
        part, plan = missing
        worth = one.rate_rps * part.worth_ms
        if worth > best_worth:
            best, best_worth, nbytes = (one.model, plan), worth, part.nbytes
            sure_worth = one.sure_rps * part.worth_ms
    if best is None or not _pays(sure_worth, nbytes - free_bytes, best[0], holdings):
        return None
    return best


def _pays(worth_ms: float, need_bytes: int, model: str, holdings: Sequence[Holding]) -> bool:
    """Whether enough leaves that is worth much less."""
    if need_bytes <= 0:
        return True
    for left_ms, leaver, part in cheapest_first(holdings):
        if leaver == model or _HYSTERESIS * left_ms >= worth_ms:
            return False
        need_bytes -= part.nbytes
        if need_bytes <= 0:
            return True
    return False
