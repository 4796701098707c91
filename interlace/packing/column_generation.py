"""The configuration program over patterns and layouts, solved by column generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from interlace.packing.deadline_order import DeadlinePricing
from interlace.packing.layouts import Layout, Pattern
from interlace.packing.queueing import Floats
from interlace.packing.solver import Constraint, GrowingProgram, LinearProgram, solve

#: An unserved request/s costs this many times the accelerator time it would take.
_UNSERVED: Final = 50.0
#: A part of a rate that is none.
_NOTHING: Final = 1e-6
#: What an accelerator costs where all of them do not suffice.
_SPARE: Final = 0.01
#: What keeping a partition as it is may save: less than any accelerator.
_KEEP: Final = 1e-3


@dataclass(frozen=True, slots=True)
class RelaxedSolution:
    """The relaxation's optimum: accelerators, how much of each pattern, and its duals.

    Duals are accelerators per request/s of a model and per partition of a share.
    """

    accelerators: float
    amounts: Floats
    model_price: Floats
    share_price: dict[int, float]


@dataclass(frozen=True, slots=True)
class IntegerSolution:
    """How many of each pattern and layout, and what of each rate that leaves unserved."""

    patterns: tuple[int, ...]
    layouts: tuple[int, ...]
    unserved_rows_per_s: Floats
    proven: bool


class MasterProblem:
    """Rows: every model's rate, and a partition for each pattern. Columns grow with the patterns.

    min sum y, subject to: sum_j rate_ij x_j >= rate_i for each model, sum_{j of share p} x_j <=
    sum_l count_lp y_l for each share. Rates are counted in parts of what is asked for.
    """

    def __init__(
        self,
        rows_per_s: Floats,
        worth: Floats,
        shares_pct: Sequence[int],
        layouts: Sequence[Layout],
        kept: Counter[Pattern],
    ) -> None:
        """``worth`` is the accelerators that one request/s takes at the least."""
        self.rows_per_s, self.worth, self.layouts = rows_per_s, worth, tuple(layouts)
        self.patterns: list[Pattern] = []
        self.fixed: Counter[Pattern] = Counter()  #: patterns taken at least that often
        self._kept = kept
        self._known: set[Pattern] = set()
        self._lower: dict[int, int] = {}
        models = len(rows_per_s)
        self._share_row = {share: models + k for k, share in enumerate(shares_pct)}
        bounds = [(1.0, inf)] * models + [(-inf, 0.0)] * len(shares_pct)
        self._program = GrowingProgram(bounds)
        for layout in self.layouts:
            self._program.add(1.0, self._given(layout))
        for model, part in enumerate(np.maximum(worth * rows_per_s, 1.0).tolist()):
            self._program.add(_UNSERVED * part, {model: 1.0})  # until a pattern serves it

    def add(self, found: Sequence[Pattern]) -> bool:
        """Take new patterns in; ``False`` if all were known."""
        fresh = [one for one in dict.fromkeys(found) if one not in self._known]
        self._known.update(fresh)
        self.patterns.extend(fresh)
        for one in fresh:
            self._program.add(0.0, self._taken(one))
        return bool(fresh)

    def relax(self) -> RelaxedSolution:
        """The relaxation's optimum and its duals; infinite if patterns serve not every model."""
        models = len(self.rows_per_s)
        first = len(self.layouts) + models
        for index, one in enumerate(self.patterns):
            if self.fixed[one] != self._lower.get(index, 0):
                self._lower[index] = self.fixed[one]
                self._program.at_least(first + index, self.fixed[one])
        objective, values, duals = self._program.solve()
        unserved = values[len(self.layouts) : first]
        prices = np.maximum(-duals[models:], 0.0)
        return RelaxedSolution(
            inf if (unserved > _NOTHING).any() else objective,
            values[first:],
            np.maximum(duals[:models], 0.0) / self.rows_per_s,
            dict(zip(self._share_row, prices.tolist(), strict=True)),
        )

    def choose(self, limit: int | None = None) -> IntegerSolution:
        """Whole numbers of patterns and layouts, as good as the limits allow to prove.

        All is served, unless a ``limit`` on the accelerators leaves no other way.
        """
        columns = [*self.patterns, *self._kept]
        first, models = len(self.layouts), len(self.rows_per_s)
        # Where something must be left unserved anyway, accelerators are not what to save.
        costs = [1.0 if limit is None else _SPARE] * first + [0.0] * len(self.patterns)
        costs += [-_KEEP] * len(self._kept)
        upper = [inf] * (first + len(self.patterns)) + [float(n) for n in self._kept.values()]
        entries = [*map(self._given, self.layouts), *map(self._taken, columns)]
        rows: list[dict[int, float]] = [{} for _ in range(models + len(self._share_row))]
        if limit is not None:
            costs += (_UNSERVED * self.worth * self.rows_per_s).tolist()
            upper += [1.0] * models
            entries += [{model: 1.0} for model in range(models)]
        for column, entry in enumerate(entries):
            for row, value in entry.items():
                rows[row][column] = value
        wanted = [
            Constraint(
                tuple(row), tuple(row.values()), *((1.0, inf) if k < models else (-inf, 0.0))
            )
            for k, row in enumerate(rows)
        ]
        if limit is not None:
            wanted.append(Constraint(tuple(range(first)), (1.0,) * first, 0.0, float(limit)))
        whole = first + len(columns)
        integer = [index < whole for index in range(len(costs))]
        program = LinearProgram(costs, [0.0] * len(costs), upper, integer, wanted)
        solution = solve(program, TIME_LIMIT_S, NODES)
        counts = np.rint(np.array(solution.values)).astype(int)
        used: Counter[Pattern] = Counter()
        for one, count in zip(columns, counts[first:whole].tolist(), strict=True):
            used[one] += count
        short = np.array(solution.values[whole:]) if limit is not None else np.zeros(models)
        return IntegerSolution(
            tuple(used[one] for one in self.patterns),
            tuple(counts[:first].tolist()),
            short * self.rows_per_s,
            solution.optimal,
        )

    def _taken(self, one: Pattern) -> dict[int, float]:
        """The column of a pattern: parts of rates that it serves, and the partition it takes."""
        turns = zip(one.turns, one.rows_per_s, strict=True)
        served = {model: rate / float(self.rows_per_s[model]) for (model, _), rate in turns}
        return {**served, self._share_row[one.share_pct]: 1.0}

    def _given(self, layout: Layout) -> dict[int, float]:
        """The column of a layout: the partitions that it offers."""
        return {self._share_row[share]: -float(count) for share, count in Counter(layout).items()}


#: Requests per second below which a rate counts as served: rounding.
NOTHING_RATE: Final = 1e-6
_TOLERANCE: Final = 1e-6
_PROGRESS: Final = 1e-3
#: Pricing rounds, before and while patterns are fixed; columns of a round and share.
_ROUNDS, _DIVE_ROUNDS, _COLUMNS = 30, 3, 4
#: Branch-and-bound nodes, which end a search alike on every machine; the time limit is for a node
#: that takes for ever.
NODES, TIME_LIMIT_S = 200, 30.0


@dataclass(frozen=True, slots=True)
class PackingSolution:
    """Patterns with how many of each, what stays unserved, how it was found and how good it is."""

    patterns: Counter[Pattern]
    layouts: tuple[Layout, ...]
    unserved_rows_per_s: Floats
    said: str

    @property
    def accelerators(self) -> int:
        return len(self.layouts)


class ColumnGeneration:
    """The configuration program of one problem: its relaxation at once, whole numbers when asked.

    ``gpus`` is what no choice of patterns can go below, if pricing was exact, infinite where they
    do not serve every model; ``amounts`` is how much of each pattern the relaxation takes.
    """

    def __init__(
        self,
        problem: DeadlinePricing,
        rows_per_s: Floats,
        layouts: Sequence[Layout],
        kept: Counter[Pattern],
    ) -> None:
        self._problem = problem
        worth = cheapest_gpus_per_rows_per_s(problem, len(rows_per_s))
        start = greedy(problem, rows_per_s, worth)
        self._master = MasterProblem(rows_per_s, worth, tuple(problem.options), layouts, kept)
        self._master.add([*start, *kept])
        self._relaxed = _generate(self._master, problem, rows_per_s, _ROUNDS)
        self.gpus = float(np.ceil(self._relaxed.accelerators - _TOLERANCE))
        amounts = self._relaxed.amounts.tolist()
        self.amounts = dict(zip(self._master.patterns, amounts, strict=True))

    def whole(self) -> PackingSolution:
        """The fewest accelerators whose patterns serve the rates."""
        _dive(self._master, self._problem, self._relaxed)
        return self._chosen(None)

    def within(self, limit: int) -> PackingSolution:
        """As much of the rates as at most ``limit`` accelerators serve."""
        return self._chosen(limit)

    def _chosen(self, limit: int | None) -> PackingSolution:
        master = self._master
        choice = master.choose(limit)
        used = {p: n for p, n in zip(master.patterns, choice.patterns, strict=True) if n > 0}
        counts = zip(master.layouts, choice.layouts, strict=True)
        cuts = tuple(layout for layout, count in counts for _ in range(count))
        said = (
            f"the configuration program: its relaxation takes {self._relaxed.accelerators:.2f} "
            f"accelerators; {'solved to the end' if choice.proven else 'stopped at its limit'}"
        )
        return PackingSolution(Counter(used), cuts, choice.unserved_rows_per_s, said)


def greedy(problem: DeadlinePricing, rows_per_s: Floats, price: Floats) -> Counter[Pattern]:
    """Take the pattern of most value for its share, as often as it is full, until all is served."""
    left = rows_per_s.copy()
    taken: Counter[Pattern] = Counter()
    while (left > NOTHING_RATE).any():
        offers = [p for p in problem.best(price, left) if _value(p, price, left) > 0]
        if not offers:
            break
        best = max(offers, key=lambda p: _value(p, price, left) / p.share_pct)
        models = [model for model, _ in best.turns]
        rates = np.array(best.rows_per_s)
        count = max(1, int((left[models] / np.maximum(rates, NOTHING_RATE)).min()))
        left[models] = np.maximum(left[models] - count * rates, 0.0)
        taken[best] += count
    return taken


def cheapest_gpus_per_rows_per_s(problem: DeadlinePricing, count: int) -> Floats:
    """Accelerators that one request/s of each model takes at the least, alone in a partition."""
    worth = np.full(count, np.inf)
    for share_pct, each in problem.worth().items():
        worth = np.minimum(worth, share_pct / 100.0 * each)
    return np.where(np.isfinite(worth), worth, 0.0)


def _value(pattern: Pattern, price: Floats, left_rows_per_s: Floats) -> float:
    models = [model for model, _ in pattern.turns]
    return float((price[models] * np.minimum(pattern.rows_per_s, left_rows_per_s[models])).sum())


def _generate(
    master: MasterProblem,
    problem: DeadlinePricing,
    left_rows_per_s: Floats,
    rounds: int,
) -> RelaxedSolution:
    """Add patterns that the duals say are worth more than their share; the relaxed optimum."""
    relaxed = master.relax()
    for _ in range(rounds):
        found = []
        for p in problem.best(relaxed.model_price, left_rows_per_s, _COLUMNS):
            least = relaxed.share_price[p.share_pct] + _TOLERANCE
            if _value(p, relaxed.model_price, left_rows_per_s) > least:
                found.append(p)
        if not master.add(found):
            break
        relaxed = master.relax()
    return relaxed


def _dive(master: MasterProblem, problem: DeadlinePricing, relaxed: RelaxedSolution) -> None:
    """Fix whole patterns of the relaxation one after another, pricing new ones for what is left.

    The patterns that a relaxation likes are full of what there is most of; whole numbers need some
    that fit what the others leave over.
    """
    left = master.rows_per_s.copy()
    before = float("inf")
    # What is left shrinks with every pattern, or the accelerators are used up.
    while (left > NOTHING_RATE).any() and (work := float((left * master.worth).sum())) < before:
        before = work * (1 - _PROGRESS)
        order = np.argsort(-relaxed.amounts, kind="stable")
        fresh = relaxed.amounts - [master.fixed[p] for p in master.patterns]
        taken = {int(i): int(fresh[i]) for i in order if fresh[i] >= 1.0 - _TOLERANCE}
        if not taken and fresh.max(initial=0.0) <= _TOLERANCE:
            break
        taken = taken or {int(fresh.argmax()): 1}
        for index, count in taken.items():
            master.fixed[master.patterns[index]] += count
        left = _left(master)
        relaxed = _generate(master, problem, left, _DIVE_ROUNDS)
    master.fixed.clear()


def _left(master: MasterProblem) -> Floats:
    left = master.rows_per_s.copy()
    for pattern, count in master.fixed.items():
        for (model, _), rate in zip(pattern.turns, pattern.rows_per_s, strict=True):
            left[model] = max(0.0, left[model] - count * rate)
    return np.where(left > master.rows_per_s * _TOLERANCE, left, 0.0)
