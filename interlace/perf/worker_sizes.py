"""Workers of an engine and what of copying they can hide (E2bird sections 5 to 7)."""

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


def hidden_part(transfer_ms: float, compute_ms: float) -> float:
    """Equation 1: the part of the time that a pool on the device saves at most, t_T / (t_T + t_C).

    Raises:
        ValueError: a time is negative, or both are 0.
    """
    if transfer_ms < 0 or compute_ms < 0 or transfer_ms + compute_ms <= 0:
        raise ValueError(
            f"times of {transfer_ms} and {compute_ms} ms; expected 0 or more, and not both 0"
        )
    return transfer_ms / (transfer_ms + compute_ms)


def throughput_gain(transfer_ms: float, compute_ms: float) -> float:
    """Throughput with copies hidden behind work, over that of one after the other, at most.

    Computing bounds it at (t_T + t_C) / t_C = 1 / (1 - equation 1), and copying, which goes on all
    the time then, at (t_T + t_C) / t_T.
    """
    part = hidden_part(transfer_ms, compute_ms)
    return 1.0 / max(part, 1.0 - part)


def rows(configuration: Sequence[int]) -> int:
    """TotalBS of equation 6: rows in flight when all workers run."""
    return sum(count << power for power, count in enumerate(configuration))


def configurations(total: int, sizes: int = SIZES) -> Iterator[Configuration]:
    """Every configuration of ``total`` rows in workers of 2^0 to 2^(sizes - 1) (equation 6)."""
    if sizes == 1:
        yield (total,)
        return
    largest = 1 << (sizes - 1)
    for count in range(total // largest + 1):
        for rest in configurations(total - count * largest, sizes - 1):
            yield (*rest, count)


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


def largest_in_time(latency: Surface, share_pct: int, slo_ms: float, max_batch: int) -> int:
    """MaxBS of N-Ebird: the largest batch of one worker within the target (section 7.2)."""
    return latency.largest_batch(slo_ms, share_pct, max_batch)


def equally_shared(latency: Surface, share_pct: int, fixed_ms: float = 0.0) -> Measure:
    """N-Ebird's hypothesis as a measure: each row in flight has an equal part of the accelerator.

    Workers that run together all take what one batch of all rows takes (section 7.2), and
    ``fixed_ms`` more for every worker, as each launches kernels of its own.
    """

    def measured(one: Configuration) -> float:
        return latency.latency_ms(rows(one), share_pct) + fixed_ms * (sum(one) - 1)

    return measured
