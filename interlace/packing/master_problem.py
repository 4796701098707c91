"""The configuration program: how often each pattern and each layout is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from interlace.packing.layouts import Layout
from interlace.packing.pattern import Pattern
from interlace.packing.queueing import Floats
from interlace.packing.solver import Constraint, LinearProgram, solve

#: An unserved request/s costs this many times the accelerator time it would take.
_UNSERVED: Final = 50.0
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
    """How many of each pattern and layout; ``bound`` is what no choice of them can go below."""

    patterns: tuple[int, ...]
    layouts: tuple[int, ...]
    unserved_rows_per_s: Floats
    bound: float
    proven: bool


@dataclass(slots=True)
class MasterProblem:
    """Rows: a partition for each pattern, and every model's rate. Columns grow with the patterns.

    min sum y + unserved, subject to: sum_{j of share p} x_j <= sum_l count_lp y_l for each share,
    sum_j rate_ij x_j + u_i >= rate_i for each model, sum y <= limit.
    """

    rows_per_s: Floats
    worth: Floats  #: accelerators that one request/s takes at the least
    shares_pct: tuple[int, ...]
    layouts: tuple[Layout, ...]
    limit: int
    kept: Counter[Pattern] = field(default_factory=Counter)
    patterns: list[Pattern] = field(default_factory=list)
    fixed: Counter[Pattern] = field(default_factory=Counter)  #: taken at least that often

    def add(self, found: Sequence[Pattern]) -> bool:
        """Take new patterns in; ``False`` if all were known."""
        known = set(self.patterns)
        fresh = [one for one in dict.fromkeys(found) if one not in known]
        self.patterns.extend(fresh)
        return bool(fresh)

    def relax(self) -> RelaxedSolution:
        """The relaxation's optimum and its duals."""
        solution = solve(self._program(whole=False, short=True))
        first = len(self.layouts)
        count = len(self.rows_per_s)
        duals = np.maximum(np.array(solution.duals[:count]), 0.0)
        prices = np.maximum(-np.array(solution.duals[count : count + len(self.shares_pct)]), 0.0)
        return RelaxedSolution(
            solution.objective,
            np.array(solution.values[first : first + len(self.patterns)]),
            duals,
            dict(zip(self.shares_pct, prices.tolist(), strict=True)),
        )

    def choose(self, nodes: int, time_limit_s: float) -> IntegerSolution:
        """Whole numbers of patterns and layouts, as good as the limits allow to prove.

        Something is left unserved only where the limit on accelerators leaves no other way.
        """
        program = self._program(whole=True, short=False)
        solution = solve(program, time_limit_s=time_limit_s, nodes=nodes)
        if not solution.feasible:
            program = self._program(whole=True, short=True)
            solution = solve(program, time_limit_s=time_limit_s, nodes=nodes)
        counts = np.rint(np.array(solution.values)).astype(int)
        first, second = len(self.layouts), len(self.layouts) + len(self.patterns)
        split = second + len(self.rows_per_s)
        used = counts[first:second] + self._kept_counts(counts[split:])
        return IntegerSolution(
            tuple(used.tolist()),
            tuple(counts[:first].tolist()),
            np.array(solution.values)[second:split],
            solution.bound,
            solution.optimal,
        )

    def _kept_counts(self, values: np.ndarray) -> np.ndarray:
        index = {one: i for i, one in enumerate(self.patterns)}
        counts = np.zeros(len(self.patterns), int)
        for one, value in zip(self.kept, values.tolist(), strict=True):
            counts[index[one]] += value
        return counts

    def _program(self, whole: bool, short: bool) -> LinearProgram:
        """``whole`` numbers or the relaxation; with unserved rates (``short``) or without."""
        columns = [*self.patterns, *self.kept]
        # Where something must be left unserved anyway, accelerators are not what to save.
        each = _SPARE if whole and short else 1.0
        costs = [each] * len(self.layouts) + [0.0] * len(self.patterns)
        costs += (_UNSERVED * self.worth).tolist() + [-_KEEP] * len(self.kept)
        upper = [float(self.limit)] * (len(self.layouts) + len(self.patterns))
        upper[len(self.layouts) :] = [float(100 * self.limit)] * len(self.patterns)
        upper += (self.rows_per_s * short).tolist() + [float(n) for n in self.kept.values()]
        lower = [0.0] * len(self.layouts) + [float(self.fixed[p]) for p in self.patterns]
        lower += [0.0] * (len(self.rows_per_s) + len(self.kept))
        integer = [whole] * (len(self.layouts) + len(self.patterns))
        integer += [False] * len(self.rows_per_s) + [whole] * len(self.kept)
        rows = [*self._rate_rows(columns), *self._share_rows(columns), self._limit_row()]
        return LinearProgram(costs, lower, upper, integer, rows)

    def _column(self, index: int) -> int:
        """Where the pattern at ``index`` of patterns-then-kept lies among the columns."""
        first = len(self.layouts)
        behind = 0 if index < len(self.patterns) else len(self.rows_per_s)
        return first + behind + index

    def _rate_rows(self, columns: Sequence[Pattern]) -> list[Constraint]:
        entries: list[dict[int, float]] = [{} for _ in self.rows_per_s]
        for index, one in enumerate(columns):
            for (model, _), rate in zip(one.turns, one.rows_per_s, strict=True):
                entries[model][self._column(index)] = rate
        slack = len(self.layouts) + len(self.patterns)
        for model, entry in enumerate(entries):
            entry[slack + model] = 1.0
        return [
            Constraint(tuple(entry), tuple(entry.values()), float(rate), float("inf"))
            for entry, rate in zip(entries, self.rows_per_s, strict=True)
        ]

    def _share_rows(self, columns: Sequence[Pattern]) -> list[Constraint]:
        rows = []
        for share in self.shares_pct:
            entry = {
                self._column(i): 1.0 for i, one in enumerate(columns) if one.share_pct == share
            }
            for index, layout in enumerate(self.layouts):
                if share in layout:
                    entry[index] = -float(layout.count(share))
            rows.append(Constraint(tuple(entry), tuple(entry.values()), -float("inf"), 0.0))
        return rows

    def _limit_row(self) -> Constraint:
        count = len(self.layouts)
        return Constraint(tuple(range(count)), (1.0,) * count, 0.0, float(self.limit))
