"""The ways to cut one accelerator that are worth considering."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from interlace.core.hardware import Gpu
from interlace.perf.latency import Surface

#: Beyond this many layouts the program spends its time on shares that hardly differ.
_MOST_LAYOUTS: Final = 700
_MOST_SHARES: Final = 10

Layout = tuple[int, ...]


def shares(gpu: Gpu, surfaces: Sequence[Surface]) -> tuple[int, ...]:
    """Shares of the accelerator at which something was measured, thinned evenly to ten."""
    known = {share for one in surfaces for share in one.shares_pct}
    offered = [share for share in gpu.shares_pct if share in known] or list(gpu.shares_pct)
    while not gpu.layouts and _too_many(offered):
        offered = _thinned(offered)
    return tuple(offered)


def layouts(gpu: Gpu, shares_pct: Sequence[int]) -> tuple[Layout, ...]:
    """Largest sets of those shares that may stand side by side, shares ascending."""
    if not gpu.layouts:
        return tuple(sorted(tuple(sorted(one)) for one in _maximal(sorted(shares_pct), 100)))
    kept = {tuple(share for share in one if share in shares_pct) for one in gpu.layouts}
    return tuple(sorted(one for one in kept if one))


def _too_many(offered: Sequence[int]) -> bool:
    if len(offered) > _MOST_SHARES:
        return True
    return sum(
        1 for _, _ in zip(_maximal(offered, 100), range(_MOST_LAYOUTS + 1), strict=False)
    ) > (_MOST_LAYOUTS)


def _thinned(offered: Sequence[int]) -> list[int]:
    """Every second share from the largest down."""
    return sorted(list(reversed(offered))[::2])


def _maximal(ascending: Sequence[int], room_pct: int) -> Iterator[Layout]:
    """Sets of those shares within ``room_pct`` to which none of them can be added."""

    def fill(rest: Sequence[int], left_pct: int) -> Iterator[Layout]:
        if left_pct < ascending[0]:
            yield ()
            return
        for index in range(len(rest)):
            share = rest[-1 - index]
            if share <= left_pct:
                for tail in fill(rest[: len(rest) - index], left_pct - share):
                    yield (share, *tail)

    return fill(ascending, room_pct) if ascending else iter(())
