"""Batch sizes of the workers of one model's engine (E2bird sections 6 and 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from interlace.perf.latency import Surface

#: Loads that are searched offline (section 7.3.2).
TOTALS: Final = (4, 8, 16, 32)
#: The published search (profile.sh) tries nothing with more workers of one row than that.
MOST_SINGLES: Final = 28
#: Batch sizes 2^0 to 2^5 of equation 6.
SIZES: Final = 6

#: How many workers have batch size 2^0, 2^1, ... (equation 6).
Configuration = tuple[int, ...]

#: Mean latency in ms of the workers of a configuration while all of them run.
Measure = Callable[[Configuration], float]


def configurations(total: int, sizes: int = SIZES) -> Iterator[Configuration]:
    """Every configuration of ``total`` rows in workers of 2^0 to 2^(sizes - 1) (equation 6)."""
    if sizes == 1:
        yield (total,)
        return
    largest = 1 << (sizes - 1)
    for count in range(total // largest + 1):
        for rest in configurations(total - count * largest, sizes - 1):
            yield (*rest, count)


def co_running(latency: Surface, share_pct: int) -> Measure:
    """The mean latency of the workers of a configuration that begin together (section 7.3.1).

    Each has the work of one batch alone and an equal part of the capacity (W / u, section 7.1), so
    that smaller ones end earlier.
    """

    def measured(one: Configuration) -> float:
        sizes = [1 << power for power, count in enumerate(one) for _ in range(count)]
        works_ms = sorted(latency.latency_ms(size, share_pct) for size in sizes)
        now_ms, done_ms, ends_ms = 0.0, 0.0, 0.0
        for place, work_ms in enumerate(works_ms):
            now_ms += (work_ms - done_ms) * (len(works_ms) - place)
            done_ms = work_ms
            ends_ms += now_ms
        return ends_ms / len(sizes)

    return measured


@dataclass(frozen=True, slots=True)
class Guideline:
    """The best configurations of each load, and the engine that has workers for them all."""

    best: Mapping[int, Configuration]
    engine: Configuration


def search(measure: Measure, totals: Iterable[int] = TOTALS, sizes: int = SIZES) -> Guideline:
    """E-Ebird's offline phase: every configuration of each load measured, the fastest kept (7.3.2).

    Of equals the one with fewer workers is taken. The engine keeps a worker of one and one of two
    rows for the lowest loads.

    Raises:
        ValueError: a load or the number of sizes is below 1.
    """
    best = {
        total: min(_tried(total, sizes), key=lambda one: (measure(one), sum(one), one))
        for total in totals
    }
    return Guideline(best, engine(best.values(), sizes))


def _tried(total: int, sizes: int) -> list[Configuration]:
    if total < 1 or sizes < 1:
        raise ValueError(f"{sizes} sizes for a load of {total} rows; expected at least 1 of each")
    every = list(configurations(total, sizes))
    return [one for one in every if one[0] <= MOST_SINGLES] or every


def engine(best: Iterable[Sequence[int]], sizes: int = SIZES) -> Configuration:
    """The fewest workers that satisfy every configuration, one of each low size kept (Table 4)."""
    least = (1, 1, *(0 for _ in range(sizes - 2)))[:sizes]
    wanted = [least, *best]
    return tuple(max(one[power] for one in wanted) for power in range(sizes))


def naive(max_batch: int) -> tuple[int, ...]:
    """N-Ebird's list: workers that make any load up to ``max_batch``; 1, 1, 2, 4, 8, 16 for 32.

    Where the largest batch is no power of two, the last worker has what is left (section 7.2.1).

    Raises:
        ValueError: the largest batch is below 1.
    """
    if max_batch < 1:
        raise ValueError(f"the largest batch is {max_batch}; expected at least 1")
    sizes = [1]
    while 2 * sum(sizes) <= max_batch:
        sizes.append(sum(sizes))
    rest = max_batch - sum(sizes)
    return tuple(sorted([*sizes, rest] if rest else sizes))
