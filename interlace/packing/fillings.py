"""What a partition of one share can be filled with, and the linear relaxation of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.packing.layouts import Layout
from interlace.packing.solver import Constraint, LinearProgram, solve
from interlace.perf.duty import CycleTurn, room_rows_per_s, shortest
from interlace.perf.memory import holds
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


_ROUNDING = 1e-9

#: Models by index with the rate that a partition takes of each.
Filling = tuple[tuple[int, float], ...]


class Fillings:
    """Duty cycles looked at, each once; ``left`` is how many steps may still be taken."""

    def __init__(self, demand: Sequence[Demand], tables: Tables, steps: int) -> None:
        self._demand = demand
        self._tables = tables
        self.left = steps
        self._fits: dict[tuple[int, Filling], bool] = {}
        self._rooms: dict[tuple[int, Filling, int], float] = {}

    @property
    def spent(self) -> bool:
        """True if no more cycles should be looked at than it takes to end in good order."""
        return self.left <= 0

    def of(
        self, gpu: Gpu, share_pct: int, needs: Sequence[float], prices: Sequence[float]
    ) -> list[Filling]:
        """Fillings that no other one contains, the most valuable first."""
        active = [
            i
            for i, need in enumerate(needs)
            if need > 0 and self._tables.saturated_rows_per_s(self._demand[i], share_pct) > 0
        ]
        found = [
            filling
            for whole in self._wholes(gpu, share_pct, needs, active)
            for filling in self._topped(gpu, share_pct, needs, whole, active)
        ]
        self.left -= 1 + len(found) // 8
        return sorted(found, key=lambda f: (-sum(prices[i] * rate for i, rate in f), f))

    def _wholes(
        self, gpu: Gpu, share_pct: int, needs: Sequence[float], active: Sequence[int]
    ) -> Iterator[Filling]:
        """Sets of models whose whole needs fit one cycle: one of them once the steps are used."""
        stack: list[tuple[int, Filling]] = [(0, ())]
        while stack:
            depth, chosen = stack.pop()
            if depth == len(active):
                yield chosen
                if self.spent:
                    return
                continue
            more = (*chosen, (active[depth], needs[active[depth]]))
            fits = self._held(gpu, share_pct, more) and self._fit(share_pct, more)
            if not (fits and self.spent):
                stack.append((depth + 1, chosen))
            if fits:
                stack.append((depth + 1, more))

    def _topped(
        self,
        gpu: Gpu,
        share_pct: int,
        needs: Sequence[float],
        whole: Filling,
        active: Sequence[int],
    ) -> Iterator[Filling]:
        """The set with each further model in part; alone where nothing can be added."""
        inside = {i for i, _ in whole}
        lone = True
        for index in (i for i in active if i not in inside):
            more = tuple(sorted((*whole, (index, needs[index]))))
            if not self._held(gpu, share_pct, more):
                continue
            if self._fit(share_pct, more):
                lone = False
                continue
            room = min(self._room(share_pct, whole, index), needs[index])
            if room > needs[index] * _ROUNDING:
                lone = False
                yield (*whole, (index, room))
        if lone and whole:
            yield whole

    def _held(self, gpu: Gpu, share_pct: int, chosen: Filling) -> bool:
        """True if the accelerator has the memory for these models if it holds nothing else."""
        models = [self._demand[i].model for i, _ in chosen]
        return holds(gpu, [(share_pct, models)], self._tables.profiles)

    def _fit(self, share_pct: int, chosen: Filling) -> bool:
        key = (share_pct, chosen)
        if key not in self._fits:
            saturated = self._tables.saturated_rows_per_s
            busy = sum(r / saturated(self._demand[i], share_pct) for i, r in chosen)
            turns = self._turns(share_pct, chosen) if busy <= 1 + _ROUNDING else []
            self.left -= bool(turns)
            self._fits[key] = shortest(turns) is not None
        return self._fits[key]

    def _room(self, share_pct: int, whole: Filling, index: int) -> float:
        key = (share_pct, whole, index)
        if key not in self._rooms:
            turns = self._turns(share_pct, whole)
            newcomer = self._tables.turn(self._demand[index], 0.0, share_pct)
            self.left -= 1
            self._rooms[key] = room_rows_per_s(turns, newcomer)
        return self._rooms[key]

    def _turns(self, share_pct: int, chosen: Filling) -> list[CycleTurn]:
        return [self._tables.turn(self._demand[i], rate, share_pct) for i, rate in chosen]
