"""The configuration program: how often each pattern and each layout is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from interlace.packing.layouts import Layout
from interlace.packing.pattern import Pattern
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

    def choose(self, nodes: int, time_limit_s: float, limit: int | None = None) -> IntegerSolution:
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
        solution = solve(program, time_limit_s=time_limit_s, nodes=nodes)
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
