"""Lower bounds by area and by layouts: time that legal partitions can offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from interlace.core.hardware import Gpu
from interlace.packing.bounds.rates import Bound, Floats, ShareRates
from interlace.packing.solver import Constraint, LinearProgram, solve


def area(rates: ShareRates, gpu: Gpu) -> Bound:
    """G >= sum_i attainment_i rate_i min_{b,p: L_i(b,p) <= SLO_i} p L_i(b,p) / b.

    The linear program over time fractions of every (model, share, batch) with the accelerators'
    area as its only constraint; its optimum is this sum, its duals are the terms.
    """
    return bound_at(rates, fractions(rates, gpu))


def fractions(rates: ShareRates, gpu: Gpu) -> Floats:
    """The part of an accelerator that each share is."""
    return np.array([gpu.fraction(share) for share in rates.shares_pct])


def cheapest(rates: ShareRates, worth: Floats) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Accelerators per request/s of each model at its cheapest share, and that share's number.

    ``worth`` is what a partition of each share costs, in accelerators.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(rates.highest_rows_per_s > 0, worth / rates.highest_rows_per_s, np.inf)
    best = np.argmin(each, axis=1)
    return each[np.arange(len(best)), best], best


def bound_at(rates: ShareRates, worth: Floats) -> Bound:
    """sum_i needed_i min_p worth_p / rate_ip, with its terms for prices.

    A lower bound wherever no legal layout's partitions are worth more than one accelerator: time
    in a partition of share p is then never cheaper than ``worth`` says.
    """
    each, _ = cheapest(rates, worth)
    price = {
        one.model: one.attainment * cost
        for one, cost in zip(rates.demand, each.tolist(), strict=True)
    }
    return Bound(float(rates.needed_rows_per_s @ each), price)


#: Models are put together in so many groups; more cuts at a time need fewer rounds.
_GROUPS: Final = 64
_ROUNDS: Final = 200
#: What is left between the best value and what no value exceeds.
_CLOSE: Final = 1e-9


def configuration(rates: ShareRates, gpu: Gpu) -> Bound:
    """The bound at ``dearest_worth``."""
    return bound_at(rates, dearest_worth(rates, gpu)) if rates.demand else Bound(0.0, {})


def dearest_worth(rates: ShareRates, gpu: Gpu) -> Floats:
    """What a partition of each share is worth, in accelerators, where layouts bound the most.

    min sum_l y_l over layouts l and time fractions x_ip of model i in partitions of share p.

    Subject to sum_i x_ip <= sum_l count_lp y_l for each share and sum_p rate_ip x_ip >=
    attainment_i rate_i for each model: Gilmore and Gomory's cutting stock (1961) with shares for
    widths and time for lengths. The duals of the latter are the prices.

    Solved from its dual, max over worths w_p of sum_i attainment_i rate_i min_p w_p / rate_ip
    where no layout is worth more than one accelerator. The function is concave, in as many
    variables as there are shares: cutting planes solve it (Kelley, 1960). Layouts of a freely cut
    accelerator come from a knapsack. Every worth gives a valid bound, and the shares' own sizes
    give the area bound. So the answer is valid, and no worse than that, wherever the search stops.
    """
    return _CuttingPlanes(rates, gpu).best()


@dataclass(frozen=True, slots=True)
class _Plane:
    """``value`` of a group is at most gradient * worth, whatever the worth."""

    group: int
    gradient: tuple[float, ...]


class _CuttingPlanes:
    """Worths of shares: cuts of the value from above, and layouts found so far."""

    def __init__(self, rates: ShareRates, gpu: Gpu) -> None:
        self._rates = rates
        self._gpu = gpu
        self._cuts: set[_Plane] = set()
        self._layouts = {tuple(map(layout.count, rates.shares_pct)) for layout in gpu.layouts}
        self._groups = min(_GROUPS, len(rates.demand))
        self._group = np.arange(len(rates.demand)) % max(1, self._groups)

    def best(self) -> Floats:
        """The worths of the highest bound found."""
        worth = fractions(self._rates, self._gpu)
        best, value = worth, self._value(worth)
        for _ in range(_ROUNDS):
            worth, above = self._master()
            layout, most = self._dearest(worth)
            self._layouts.add(layout)
            worth = worth / max(1.0, most)
            found = self._value(worth)
            if found > value:
                best, value = worth, found
            if above - value <= _CLOSE * max(1.0, value):
                break
        return best

    def _value(self, worth: Floats) -> float:
        """The bound at these worths; its terms become cuts."""
        each, share = cheapest(self._rates, worth)
        needed, shares = self._rates.needed_rows_per_s, len(self._rates.shares_pct)
        time = needed / self._rates.highest_rows_per_s[np.arange(len(share)), share]
        steep = np.bincount(self._group * shares + share, time, self._groups * shares)
        self._cuts.update(
            _Plane(group, tuple(gradient))
            for group, gradient in enumerate(steep.reshape(self._groups, shares).tolist())
        )
        return float(needed @ each)

    def _dearest(self, worth: Floats) -> tuple[tuple[int, ...], float]:
        """The layout that is worth most, as counts of shares, and what it is worth."""
        if self._gpu.layouts:
            known = sorted(self._layouts)
            values = np.array(known) @ worth
            return known[int(np.argmax(values))], float(values.max())
        return _knapsack(self._rates.shares_pct, worth)

    def _master(self) -> tuple[Floats, float]:
        """The worths that look best by the cuts and layouts so far, and their value."""
        shares = len(self._rates.shares_pct)
        rows = [
            _row([*(-slope for slope in cut.gradient)], shares + cut.group, 0.0)
            for cut in sorted(self._cuts, key=lambda cut: (cut.group, cut.gradient))
        ]
        rows += [_row(layout, None, 1.0) for layout in sorted(self._layouts)]
        columns = shares + self._groups
        cost = [0.0] * shares + [-1.0] * self._groups
        upper = [1.0] * shares + [float("inf")] * self._groups
        found = solve(LinearProgram(cost, [0.0] * columns, upper, [False] * columns, rows))
        if not found.optimal:
            return fractions(self._rates, self._gpu), 0.0
        return np.maximum(0.0, np.array(found.values[:shares])), -found.objective


def _row(values: Sequence[float], extra: int | None, upper: float) -> Constraint:
    entries = [(index, float(value)) for index, value in enumerate(values) if value]
    if extra is not None:
        entries.append((extra, 1.0))
    return Constraint(
        tuple(i for i, _ in entries), tuple(v for _, v in entries), -float("inf"), upper
    )


def _knapsack(shares_pct: Sequence[int], worth: Floats) -> tuple[tuple[int, ...], float]:
    """Shares of at most 100 % together, of the highest worth: counts of each, and the worth."""
    best, last = [0.0], [-1]
    values = worth.tolist()
    for room in range(1, 101):
        value, pick = best[room - 1], -1
        for index, share in enumerate(shares_pct):
            if share <= room and best[room - share] + values[index] > value:
                value, pick = best[room - share] + values[index], index
        best.append(value)
        last.append(pick)
    counts, room = [0] * len(shares_pct), 100
    while room > 0:
        if last[room] < 0:
            room -= 1
        else:
            counts[last[room]] += 1
            room -= shares_pct[last[room]]
    return tuple(counts), best[100]
