"""How an app's SLO is divided among its steps: ours and known rules beside the cheapest of all.

Random apps of two to five steps, chains and branches, with fan-outs, affine latencies and rates.
The cost of a split is the part of accelerators that its steps take. The cheapest is found by
exhaustive search with bounds. Times are of the processor: others may be busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isinf
from random import Random
from statistics import mean, quantiles
from time import process_time
from typing import Annotated, Final

from bench.harness import Report, Table, main
from interlace.apps.budgets import SPLITS, StepCost, step_cost

_Readers = tuple[tuple[int, ...], ...]
_SHAPES: Final[tuple[_Readers, ...]] = (
    ((1,), ()),
    ((1,), (2,), ()),
    ((1, 2), (), ()),
    ((1,), (2,), (3,), ()),
    ((1, 2), (3,), (3,), ()),
    ((1,), (2,), (3,), (4,), ()),
    ((1,), (2, 3), (4,), (4,), ()),
)
_MAX_BATCH: Final = 16


@dataclass(frozen=True, slots=True)
class Split:
    """One rule on one app: its cost over the cheapest's; infinite if it finds none in time."""

    rule: str
    app: int
    ratio: float
    took_ms: float


def splits(
    *,
    apps: Annotated[int, "apps drawn for each SLO"] = 400,
    slos: Annotated[tuple[float, ...], "SLOs, in sums of the steps' times alone"] = (3.0, 5.0, 8.0),
    seed: int = 0,
) -> Report:
    """Every rule on every app for which a split exists."""
    rows, figures = [], []
    for times in slos:
        found: dict[str, list[Split]] = {}
        for number in range(apps):
            for one in _tried(number, times, Random(f"{seed}/{times}/{number}")):
                found.setdefault(one.rule, []).append(one)
        for rule, every in found.items():
            ratios = [one.ratio for one in every if not isinf(one.ratio)]
            close = sum(one.ratio <= 1.01 for one in every)
            worst = quantiles(ratios, n=20)[-1] if len(ratios) > 1 else inf
            rows.append(
                (
                    f"{times:g}",
                    rule,
                    len(every),
                    f"{mean(ratios):.3f}",
                    f"{worst:.3f}",
                    f"{100 * close / len(every):.1f} %",
                    f"{100 * (1 - len(ratios) / len(every)):.1f} %",
                    f"{max(one.took_ms for one in every):.1f}",
                )
            )
            figures += every
    heads = ("SLO", "rule", "apps", "cost, mean", "95th", "within 1 %", "none found", "most CPU ms")
    return Report(tables=[Table(heads, rows)], figures=figures)


def _tried(number: int, times: float, random: Random) -> list[Split]:
    readers = random.choice(_SHAPES)
    rate = random.uniform(20.0, 2000.0)
    alone, costs = [], []
    for _ in readers:
        base, slope = random.uniform(0.5, 20.0), random.uniform(0.05, 3.0)
        fan = random.uniform(0.5, 5.0)
        latencies = [base + slope * rows for rows in range(1, _MAX_BATCH + 1)]
        alone.append(latencies[0])
        costs.append(step_cost(latencies, rate * fan))
    slo_ms = times * sum(alone) / len(readers) * _depth(readers)
    cheapest = _cheapest(readers, costs, slo_ms)
    if isinf(cheapest):
        return []
    return [
        _timed(rule, number, partial(split, readers, costs, slo_ms), costs, cheapest)
        for rule, split in SPLITS.items()
    ]


def _timed(
    rule: str,
    app: int,
    split: Callable[[], Sequence[float] | None],
    costs: Sequence[StepCost],
    cheapest: float,
) -> Split:
    began_s = process_time()
    budgets = split()
    took_ms = (process_time() - began_s) * 1000.0
    if budgets is None:
        return Split(rule, app, inf, took_ms)
    total = sum(cost.at(own + 1e-6) for cost, own in zip(costs, budgets, strict=True))
    return Split(rule, app, total / cheapest, took_ms)


def _depth(readers: _Readers) -> int:
    depth = [1] * len(readers)
    for place, behind in enumerate(readers):
        for reader in behind:
            depth[reader] = max(depth[reader], depth[place] + 1)
    return max(depth)


def _cheapest(readers: _Readers, costs: Sequence[StepCost], slo_ms: float) -> float:
    """The least cost over all choices of batches, cut where it can only be dearer or late."""
    behind_ms = [0.0] * len(costs)
    for place in reversed(range(len(costs))):
        for reader in readers[place]:
            behind_ms[place] = max(behind_ms[place], behind_ms[reader] + costs[reader].least_ms)
    rest = [0.0] * (len(costs) + 1)
    for place in reversed(range(len(costs))):
        rest[place] = rest[place + 1] + min(costs[place].costs)
    choices = [sorted(zip(one.costs, one.times_ms, strict=True)) for one in costs]
    best = inf

    def choose(place: int, spent: float, begins_ms: list[float]) -> None:
        nonlocal best
        if place == len(costs):
            best = min(best, spent)
            return
        for cost, time_ms in choices[place]:
            if spent + cost + rest[place + 1] >= best:
                return
            ends_ms = begins_ms[place] + time_ms
            if ends_ms + behind_ms[place] > slo_ms:
                continue
            begins = list(begins_ms)
            for reader in readers[place]:
                begins[reader] = max(begins[reader], ends_ms)
            choose(place + 1, spent + cost, begins)

    choose(0, 0.0, [0.0] * len(costs))
    return best


if __name__ == "__main__":
    main(splits)
