"""Layouts of one accelerator, and patterns that fill one partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.hardware import Gpu
from interlace.perf.latency import Surface

#: Beyond this many layouts the program spends its time on shares that hardly differ.
_MOST_LAYOUTS: Final = 700
_MOST_SHARES: Final = 10

Layout = tuple[int, ...]


def alike(gpus: Sequence[Gpu]) -> list[list[Gpu]]:
    """Accelerators of the same kind, geometry and memory, in their order."""
    kinds: dict[tuple[object, ...], list[Gpu]] = {}
    for gpu in gpus:
        cut = (gpu.shares_pct, gpu.layouts, gpu.blocks)
        kinds.setdefault((gpu.kind, cut, gpu.memory_bytes, gpu.walls), []).append(gpu)
    return list(kinds.values())


def shares(gpu: Gpu, surfaces: Sequence[Surface]) -> tuple[int, ...]:
    """Shares of the accelerator at which something was measured, thinned evenly to ten."""
    known = {share for one in surfaces for share in one.shares_pct}
    offered = [share for share in gpu.shares_pct if share in known] or list(gpu.shares_pct)
    while not gpu.layouts and _too_many(gpu, offered):
        offered = sorted(list(reversed(offered))[::2])  # every second one, from the largest
    return tuple(offered)


def layouts(gpu: Gpu, shares_pct: Sequence[int]) -> tuple[Layout, ...]:
    """Largest sets of those shares that may stand side by side, shares ascending."""
    if not gpu.layouts:
        return tuple(sorted(tuple(sorted(one)) for one in _maximal(gpu, sorted(shares_pct))))
    kept = {tuple(share for share in one if share in shares_pct) for one in gpu.layouts}
    return tuple(sorted(one for one in kept if one))


def _too_many(gpu: Gpu, offered: Sequence[int]) -> bool:
    if len(offered) > _MOST_SHARES:
        return True
    return sum(
        1 for _, _ in zip(_maximal(gpu, offered), range(_MOST_LAYOUTS + 1), strict=False)
    ) > (_MOST_LAYOUTS)


def _maximal(gpu: Gpu, ascending: Sequence[int]) -> Iterator[Layout]:
    """Sets of those shares that fit, to which none of them can be added."""

    def fill(rest: Sequence[int], room: int) -> Iterator[Layout]:
        if room < gpu.taken(ascending[0]):
            yield ()
            return
        for index in range(len(rest)):
            share = rest[-1 - index]
            if gpu.taken(share) <= room:
                for tail in fill(rest[: len(rest) - index], room - gpu.taken(share)):
                    yield (share, *tail)

    return fill(ascending, gpu.room) if ascending else iter(())


@dataclass(frozen=True, slots=True)
class Pattern:
    """``turns`` are (model index, batch) in a partition, ``rows_per_s`` what each serves."""

    share_pct: int
    turns: tuple[tuple[int, int], ...]
    rows_per_s: tuple[float, ...]
