"""The linear relaxation of filling partitions under the duty-cycle rule, and its prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.plan import Demand
from interlace.packing.layouts import Layout
from interlace.packing.solver import Constraint, LinearProgram, solve
from interlace.perf.tables import Tables

#: A group of like accelerators by number, and a share.
GroupShare = tuple[int, int]

_INFINITE: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Relaxation:
    """``factor`` on all rates that no plan exceeds; prices per request/s; the value of a bin.

    With these prices no partition earns more than its value: what costs more than the bins that
    are left are worth fits no plan. In a cycle a model takes at least rate / saturated of the time
    (``Tables.saturated_rows_per_s``), so a partition earns at most the price of its dearest model.
    """

    factor: float
    prices: tuple[float, ...]
    values: dict[GroupShare, float]

    def worth(self, rows_per_s: Sequence[float]) -> float:
        """What these rates cost."""
        return sum(price * rate for price, rate in zip(self.prices, rows_per_s, strict=True))

    def room(self, bins: Sequence[GroupShare]) -> float:
        """What these partitions can earn at most."""
        return sum(self.values[one] for one in bins)


def relaxed(
    demand: Sequence[Demand], groups: Sequence[tuple[int, Sequence[Layout]]], tables: Tables
) -> Relaxation:
    """The largest factor on all rates where time and layouts may be mixed in any parts.

    Columns: the factor; time of each bin given to each model; accelerators of each layout.
    """
    bins = sorted({(g, share) for g, (_, cut) in enumerate(groups) for one in cut for share in one})
    serves = {
        (i, one): tables.saturated_rows_per_s(d, one[1])
        for i, d in enumerate(demand)
        for one in bins
    }
    times = [key for key, rate in serves.items() if rate > 0]
    cuts = [(g, one) for g, (_, layouts) in enumerate(groups) for one in layouts]
    first = 1 + len(times)
    mine: dict[int, list[tuple[int, float]]] = {i: [] for i in range(len(demand))}
    every_use: dict[GroupShare, list[tuple[int, float]]] = {one: [] for one in bins}
    for k, (i, one) in enumerate(times, 1):
        mine[i].append((k, serves[i, one]))
        every_use[one].append((k, 1.0))
    rows = [_row([*mine[i], (0, -d.rows_per_s)], 0.0, _INFINITE) for i, d in enumerate(demand)]
    for one, used in every_use.items():
        there = [
            (first + k, -float(cut.count(one[1])))
            for k, (g, cut) in enumerate(cuts)
            if g == one[0] and one[1] in cut
        ]
        rows.append(_row([*used, *there], -_INFINITE, 0.0))
    for g, (count, _) in enumerate(groups):
        every = [(first + k, 1.0) for k, (group, _) in enumerate(cuts) if group == g]
        rows.append(_row(every, -_INFINITE, float(count)))
    wide = first + len(cuts)
    program = LinearProgram(
        (-1.0, *(0.0,) * (wide - 1)), (0.0,) * wide, (_INFINITE,) * wide, (False,) * wide, rows
    )
    found = solve(program)
    prices = tuple(max(0.0, abs(dual)) for dual in found.duals[: len(demand)])
    values = {
        one: max((prices[i] * serves[i, one] for i in range(len(demand))), default=0.0)
        for one in bins
    }
    return Relaxation(found.values[0] if found.feasible else 0.0, prices, values)


def _row(entries: Sequence[tuple[int, float]], lower: float, upper: float) -> Constraint:
    return Constraint(tuple(k for k, _ in entries), tuple(v for _, v in entries), lower, upper)
