"""Every way to cut some accelerators and to fill the parts, tried until one serves all rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import NamedTuple

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.packing.cuts import Glet, GpuCut
from interlace.packing.fillings import Filling, Fillings, GroupShare, Relaxation, relaxed
from interlace.packing.layouts import Layout, alike, layouts, shares
from interlace.perf.memory import holds
from interlace.perf.tables import Tables

_ROUNDING = 1e-9
#: Partitions beyond which only the greedy filling is made.
_DEEPEST = 100
#: Cuts that the steps left are divided among, the most promising first.
_AT_ONCE = 6


#: Which filling goes into which partition.
Made = Sequence[tuple[GroupShare, Filling]]
#: A layout for every accelerator, with the number of its group.
Cuts = Sequence[tuple[int, tuple[Gpu, Layout]]]


class Group(NamedTuple):
    """Accelerators of the same geometry and memory, and the layouts that are tried on them."""

    gpus: tuple[Gpu, ...]
    layouts: tuple[Layout, ...]


def groups(gpus: Sequence[Gpu], demand: Sequence[Demand], tables: Tables) -> tuple[Group, ...]:
    """Accelerators by kind; layouts of the shares at which the models were measured."""
    surfaces = [tables.surface(one.model) for one in demand]
    return tuple(
        Group(tuple(kind), layouts(kind[0], shares(kind[0], surfaces))) for kind in alike(gpus)
    )


@dataclass(slots=True)
class BestCut:
    """What was found: cut accelerators, and the rates that stay unserved, model by model."""

    cuts: list[GpuCut] = field(default_factory=list)
    left_rows_per_s: tuple[float, ...] = ()
    complete: bool = False


class ExhaustiveSearch:
    """Depth-first over layouts, and for each over what its partitions are filled with.

    Filled with: models whose whole remaining rate fits, and one more at the highest rate that
    fits beside them. Partitions are taken in every order. This reaches every plan in which the
    models that are split over partitions form no ring: some partition then has one split model
    only, as in basic solutions of linear programs. A ring is two models split over the same two
    partitions. It gains a little at times where batches are few rows, and is not looked for. Where
    partitions share memory, only the fullest fillings are tried for want of it. A partial plan is
    given up when the prices of the linear relaxation show that the accelerators left cannot hold
    the rest. ``steps`` bounds the cycles, fillings and partial plans looked at; ``exhausted`` is
    false if it ended the search.
    """

    def __init__(self, demand: Sequence[Demand], tables: Tables, steps: int) -> None:
        self._demand = demand
        self._tables = tables
        self._rates = tuple(one.rows_per_s for one in demand)
        self._fillings = Fillings(demand, tables, steps)
        self._steps = steps
        self.exhausted = True

    def possible(self, parts: Sequence[Group]) -> bool:
        """True if time and layouts of these accelerators would do if they could be mixed freely."""
        return self._relaxed(parts).factor >= 1.0 - _ROUNDING

    def search(self, parts: Sequence[Group]) -> BestCut:
        """A plan for all of these accelerators that serves every rate, else the best met."""
        relaxation = self._relaxed(parts)
        best = BestCut(left_rows_per_s=self._rates)
        possible = relaxation.factor >= 1.0 - _ROUNDING
        dive = _DepthFirst(self._fillings, relaxation, [group.gpus[0] for group in parts])
        ranked, finished = self._ranked(parts, dive)
        for index, (_, start, cut) in enumerate(ranked):
            # Steps that a cut does not need are left to the next ones.
            budget = self._fillings.left // min(len(ranked) - index, _AT_ONCE)
            spare, self._fillings.left = self._fillings.left - budget, budget

            def placeable(made: Made, cut: Cuts = cut) -> bool:
                return self._placed(made, cut).complete

            placed = self._placed(dive.run(_bins(cut), self._rates, start, placeable), cut)
            finished = finished and not self._fillings.spent and not dive.cut_short
            self._fillings.left = spare + max(0, self._fillings.left)
            if placed.complete or _value(placed, relaxation) < _value(best, relaxation):
                best = placed
            if best.complete:
                break
        self.exhausted = self.exhausted and (finished or best.complete or not possible)
        return best

    def _relaxed(self, parts: Sequence[Group]) -> Relaxation:
        return relaxed(self._demand, [(len(g.gpus), g.layouts) for g in parts], self._tables)

    def _ranked(
        self, parts: Sequence[Group], dive: _DepthFirst
    ) -> tuple[list[tuple[float, Made, Cuts]], bool]:
        """Cuts with a greedy filling each, the best first; whether there was time for all."""
        self._fillings.left = self._steps
        ranked: list[tuple[float, Made, Cuts]] = []
        for cut in _cuts(parts):
            if ranked and self._fillings.left <= self._steps // 2:
                return sorted(ranked, key=lambda one: one[0]), False
            self._fillings.left -= 1
            made, left = dive.greedy(_bins(cut), self._rates)
            ranked.append((left, made, cut))
        return sorted(ranked, key=lambda one: one[0]), True

    def _placed(self, made: Made, cut: Cuts) -> BestCut:
        """Fillings on accelerators that have the share and the memory; what finds none is left."""
        homes = [(group, GpuCut(gpu), list(layout)) for group, (gpu, layout) in cut]
        left = list(self._rates)
        for (group, share), filling in made:
            models = [self._demand[i].model for i, _ in filling]
            for there, home, free in homes:
                if there != group or share not in free:
                    continue
                glet = Glet(share)
                others = [(g.share_pct, g.models) for g in home.glets]
                if not holds(home.gpu, [*others, (share, models)], self._tables.profiles):
                    continue
                glet.turns = [self._tables.turn(self._demand[i], r, share) for i, r in filling]
                home.add(glet)
                free.remove(share)
                for i, rate in filling:
                    left[i] = max(0.0, left[i] - rate)
                break
        left = [
            rest if rest > rate * _ROUNDING else 0.0
            for rest, rate in zip(left, self._rates, strict=True)
        ]
        return BestCut([home for _, home, _ in homes], tuple(left), not any(left))


def _value(best: BestCut, relaxation: Relaxation) -> float:
    return sum(p * left for p, left in zip(relaxation.prices, best.left_rows_per_s, strict=True))


def _bins(cut: Cuts) -> tuple[GroupShare, ...]:
    """All partitions of the layouts, the largest first."""
    every = ((group, share) for group, (_, layout) in cut for share in layout)
    return tuple(sorted(every, key=lambda one: (-one[1], one[0])))


def _cuts(parts: Sequence[Group], first: int = 0) -> Iterator[Cuts]:
    """Every choice of a layout for every accelerator, alike ones in one order only; made lazily."""
    if first == len(parts):
        yield []
        return
    gpus, known = parts[first]
    for picked in combinations_with_replacement(known, len(gpus)):
        here = [(first, one) for one in zip(gpus, picked, strict=True)]
        for others in _cuts(parts, first + 1):
            yield [*here, *others]


class _DepthFirst:
    """One set of bins at a time: fillings for them that serve all, else the best of them."""

    def __init__(self, fillings: Fillings, relaxation: Relaxation, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self._fillings = fillings
        self._relaxation = relaxation
        self._placeable: Callable[[Made], bool] = bool
        self._best: Made = []
        self._best_left = float("inf")
        self.cut_short = False
        self._seen: set[tuple[tuple[GroupShare, ...], tuple[float, ...]]] = set()

    def run(
        self,
        bins: tuple[GroupShare, ...],
        needs: tuple[float, ...],
        start: Made,
        placeable: Callable[[Made], bool],
    ) -> Made:
        """``start`` or better fillings: of all needs if that can be done and placed."""
        self._placeable = placeable
        self._best, self._best_left = start, self._left(_rest(needs, start))
        if self._best_left < 0 and not placeable(start):
            self._best_left = float("inf")
        self._seen.clear()
        self.cut_short = len(bins) > _DEEPEST
        if self._best_left >= 0 and not self.cut_short:
            self._down(bins, needs, [])
        return self._best

    def greedy(self, bins: tuple[GroupShare, ...], needs: tuple[float, ...]) -> tuple[Made, float]:
        """The most valuable filling of each bin in turn, and what is then left."""
        made: list[tuple[GroupShare, Filling]] = []
        for one in bins:
            fillings = self._of(one, needs)
            if fillings:
                made.append((one, fillings[0]))
                needs = _after(needs, fillings[0])
        return made, self._left(needs)

    def _of(self, one: GroupShare, needs: tuple[float, ...]) -> list[Filling]:
        gpu, share_pct = self._gpus[one[0]], one[1]
        return self._fillings.of(gpu, share_pct, needs, self._relaxation.prices)

    def _left(self, needs: tuple[float, ...]) -> float:
        """What needs are worth, below zero if there are none."""
        return self._relaxation.worth(needs) if any(needs) else -1.0

    def _down(
        self,
        bins: tuple[GroupShare, ...],
        needs: tuple[float, ...],
        made: list[tuple[GroupShare, Filling]],
    ) -> bool:
        self._fillings.left -= 1
        left = self._left(needs)
        done = not any(needs)
        if left < self._best_left and (not done or self._placeable(made)):
            self._best, self._best_left = list(made), left
        if done:
            return self._best_left < 0
        key = (bins, needs)
        if key in self._seen or self._fillings.spent:
            return False
        self._seen.add(key)
        if left > self._relaxation.room(bins) * (1 + _ROUNDING):
            return False
        for index, one in enumerate(bins):
            if self._fillings.spent:
                break
            if index and bins[index - 1] == one:
                continue
            rest = bins[:index] + bins[index + 1 :]
            for filling in self._of(one, needs):
                if self._down(rest, _after(needs, filling), [*made, (one, filling)]):
                    return True
        return False


def _rest(needs: tuple[float, ...], made: Made) -> tuple[float, ...]:
    for _, filling in made:
        needs = _after(needs, filling)
    return needs


def _after(needs: tuple[float, ...], filling: Filling) -> tuple[float, ...]:
    left = list(needs)
    for index, rate in filling:
        rest = left[index] - rate
        left[index] = rest if rest > left[index] * _ROUNDING else 0.0
    return tuple(left)
