"""Linear and integer programs, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import highspy
import numpy as np

from interlace.packing.queueing import Floats


class Constraint(NamedTuple):
    """A constraint: lower <= sum of values[k] * column[indices[k]] <= upper."""

    indices: tuple[int, ...]
    values: tuple[float, ...]
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class LinearProgram:
    """Minimise cost * column within bounds and rows; ``integer`` columns are whole numbers."""

    cost: Sequence[float]
    lower: Sequence[float]
    upper: Sequence[float]
    integer: Sequence[bool]
    rows: Sequence[Constraint]


@dataclass(frozen=True, slots=True)
class Solution:
    """What was found: ``bound`` is what no solution can be below, ``duals`` one for each row.

    ``feasible`` is false if there is no solution or none was found within the limits; the values
    are then zeros. ``optimal`` is true if nothing better exists, or nothing by more than the gap
    that was asked for. ``duals`` of integer programs are zeros.
    """

    feasible: bool
    optimal: bool
    objective: float
    bound: float
    values: tuple[float, ...]
    duals: tuple[float, ...]


def solve(
    program: LinearProgram,
    time_limit_s: float = 10.0,
    nodes: int | None = None,
    gap: float = 1e-4,
) -> Solution:
    """The optimum, or the best found within the limits; on one thread with a fixed seed.

    The same program has the same answer unless ``time_limit_s`` cuts the search short; ``nodes``
    limits branch and bound alike on every machine. The search ends within a part
    ``gap`` of the optimum.
    """
    highs = _highs()
    highs.setOptionValue("time_limit", time_limit_s)
    highs.setOptionValue("mip_rel_gap", gap)
    if nodes is not None:
        highs.setOptionValue("mip_max_nodes", nodes)
    highs.passModel(_model(program))
    highs.run()
    return _solution(highs, program)


class GrowingProgram:
    """A linear program of fixed rows that gains columns; each solution begins from the one before.

    ``rows`` are (lower, upper) bounds. Minimises cost * column, columns at least 0.
    """

    def __init__(self, rows: Sequence[tuple[float, float]]) -> None:
        self._highs = _highs()
        for lower, upper in rows:
            self._highs.addRow(_wide(lower), _wide(upper), 0, [], [])

    def add(self, cost: float, entries: Mapping[int, float]) -> None:
        """One more column, with its value in each row."""
        keys = np.array(list(entries), np.int32)
        values = np.array(list(entries.values()), float)
        self._highs.addCol(cost, 0.0, highspy.kHighsInf, len(keys), keys, values)

    def at_least(self, column: int, lower: float) -> None:
        """Another lower bound for a column."""
        self._highs.changeColBounds(column, lower, highspy.kHighsInf)

    def solve(self) -> tuple[float, Floats, Floats]:
        """The optimum, its columns and the duals of its rows.

        Raises:
            ValueError: there is no solution.
        """
        self._highs.run()
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise ValueError(f"no optimum: {self._highs.getModelStatus()}")
        found = self._highs.getSolution()
        objective = float(self._highs.getInfo().objective_function_value)
        return objective, np.array(found.col_value), np.array(found.row_dual)


class _Silent(highspy.Highs):
    """From 1.16 on a first call of any other method prints a banner, and making one makes calls."""

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


def _highs() -> highspy.Highs:
    """HiGHS on one thread with a fixed seed, silent."""
    highs = _Silent()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    highs.setOptionValue("mip_allow_restart", False)  # of small programs it takes half of the time
    return highs


def _model(program: LinearProgram) -> highspy.HighsLp:
    model = highspy.HighsLp()
    model.num_col_ = len(program.cost)
    model.num_row_ = len(program.rows)
    model.col_cost_ = np.array(program.cost, float)
    model.col_lower_ = np.array(program.lower, float)
    model.col_upper_ = np.array([_wide(v) for v in program.upper], float)
    model.row_lower_ = np.array([_wide(row.lower) for row in program.rows], float)
    model.row_upper_ = np.array([_wide(row.upper) for row in program.rows], float)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    starts = np.cumsum([0, *(len(row.indices) for row in program.rows)])
    model.a_matrix_.start_ = starts.astype(np.int32)
    indices = [i for row in program.rows for i in row.indices]
    model.a_matrix_.index_ = np.array(indices, np.int32)
    model.a_matrix_.value_ = np.array([v for row in program.rows for v in row.values], float)
    if any(program.integer):
        whole = highspy.HighsVarType
        model.integrality_ = [whole.kInteger if i else whole.kContinuous for i in program.integer]
    return model


def _wide(value: float) -> float:
    return value if isfinite(value) else float(np.copysign(highspy.kHighsInf, value))


def _solution(highs: highspy.Highs, program: LinearProgram) -> Solution:
    info, found = highs.getInfo(), highs.getSolution()
    optimal = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    whole = any(program.integer)
    values = tuple(found.col_value) if feasible else (0.0,) * len(program.cost)
    duals = tuple(found.row_dual) if feasible and not whole else (0.0,) * len(program.rows)
    return Solution(
        feasible,
        optimal,
        float(info.objective_function_value) if feasible else float("inf"),
        float(info.mip_dual_bound if whole else info.objective_function_value),
        values,
        duals,
    )
