"""How much of a time was shared: intervals and the part of them that others cover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """One execution, from command to completion."""

    began_ms: float
    ended_ms: float

    @property
    def took_ms(self) -> float:
        return self.ended_ms - self.began_ms


def merged(intervals: Sequence[Interval]) -> list[Interval]:
    """The same time as intervals that do not touch, in order."""
    found: list[Interval] = []
    for one in sorted(intervals):
        if found and one.began_ms <= found[-1].ended_ms:
            last = found.pop()
            found.append(Interval(last.began_ms, max(last.ended_ms, one.ended_ms)))
        elif one.took_ms > 0:
            found.append(one)
    return found


def common(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The time that lies in both."""
    cuts = [
        Interval(max(a.began_ms, b.began_ms), min(a.ended_ms, b.ended_ms))
        for a in merged(intervals)
        for b in merged(others)
        if a.began_ms < b.ended_ms and b.began_ms < a.ended_ms
    ]
    return merged(cuts)


def total_ms(intervals: Sequence[Interval]) -> float:
    return sum(one.took_ms for one in merged(intervals))


def overlap(own: Sequence[Interval], neighbours: Sequence[Sequence[Interval]]) -> float:
    """The part, 0..1, of one's own time during which every neighbour ran too.

    1.0 for nobody's neighbour; 0.0 if one did not run at all.
    """
    mine_ms = total_ms(own)
    if mine_ms <= 0:
        return 0.0
    shared = merged(own)
    for other in neighbours:
        shared = common(shared, other)
    return min(1.0, total_ms(shared) / mine_ms)


def together(runs: Sequence[Sequence[Interval]]) -> Interval | None:
    """From when all have begun to when the first has made its last end; ``None`` if never."""
    if not runs or not all(runs):
        return None
    began_ms = max(run[0].began_ms for run in runs)
    ended_ms = min(run[-1].ended_ms for run in runs)
    return Interval(began_ms, ended_ms) if began_ms < ended_ms else None


def inside(run: Sequence[Interval], window: Interval) -> list[Interval]:
    """The executions that lie in a window from begin to end."""
    return [
        one for one in run if window.began_ms <= one.began_ms and one.ended_ms <= window.ended_ms
    ]
