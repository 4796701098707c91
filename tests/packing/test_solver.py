"""Linear and integer programs: optima, prices, limits, what has no solution."""

import subprocess
import sys
from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.packing.solver import Constraint, LinearProgram, solve


def _knapsack(weights: list[int], values: list[int], room: int, whole: bool) -> LinearProgram:
    count = len(weights)
    row = Constraint(tuple(range(count)), tuple(map(float, weights)), -inf, float(room))
    costs = [-float(value) for value in values]
    return LinearProgram(costs, [0.0] * count, [1.0] * count, [whole] * count, [row])


def test_a_linear_program_has_its_optimum_and_prices() -> None:
    """min 2x + 3y, x + y >= 4, x + 3y >= 6: optimum at (3, 1), prices 1.5 and 0.5."""
    rows = [Constraint((0, 1), (1.0, 1.0), 4.0, inf), Constraint((0, 1), (1.0, 3.0), 6.0, inf)]
    found = solve(LinearProgram([2.0, 3.0], [0.0, 0.0], [inf, inf], [False, False], rows))
    assert found.feasible and found.optimal
    assert found.values == pytest.approx((3.0, 1.0))
    assert found.objective == pytest.approx(9.0)
    assert found.bound == pytest.approx(9.0)
    assert found.duals == pytest.approx((1.5, 0.5))


def test_columns_stay_within_their_bounds() -> None:
    row = Constraint((0, 1), (1.0, 1.0), 1.0, 1.0)
    found = solve(LinearProgram([1.0, 1.0], [-inf, -2.0], [inf, 3.0], [False, False], [row]))
    assert sum(found.values) == pytest.approx(1.0)
    assert -2.0 <= found.values[1] <= 3.0


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=6),
    st.integers(0, 40),
)
def test_whole_numbers_are_as_good_as_trying_all(items: list[tuple[int, int]], room: int) -> None:
    weights, values = [w for w, _ in items], [v for _, v in items]
    best = max(
        sum(v for v, took in zip(values, choice, strict=True) if took)
        for choice in product((0, 1), repeat=len(items))
        if sum(w for w, took in zip(weights, choice, strict=True) if took) <= room
    )
    whole = solve(_knapsack(weights, values, room, True))
    assert whole.optimal
    assert -whole.objective == pytest.approx(best)
    assert whole.bound == pytest.approx(whole.objective, abs=1e-6)
    parts = solve(_knapsack(weights, values, room, False))
    assert parts.objective <= whole.objective + 1e-6, "a relaxation is no worse"


def test_what_cannot_be_is_not_feasible() -> None:
    apart = [Constraint((0,), (1.0,), 2.0, inf), Constraint((0,), (1.0,), -inf, 1.0)]
    for whole in (False, True):
        found = solve(LinearProgram([1.0], [0.0], [inf], [whole], apart))
        assert not found.feasible and not found.optimal
        assert found.objective == inf
        assert found.values == (0.0,)
    assert not solve(LinearProgram([-1.0], [0.0], [inf], [False], [])).optimal, "unbounded"


def test_a_wide_gap_is_enough_where_it_is_asked_for() -> None:
    weights = [(7919 * i) % 97 + 20 for i in range(40)]
    values = [(104729 * i) % 89 + 20 for i in range(40)]
    program = _knapsack(weights, values, sum(weights) // 2, True)
    best, rough = solve(program, gap=0.0), solve(program, gap=0.2)
    assert best.bound == pytest.approx(best.objective, rel=1e-9)
    assert best.objective <= rough.objective <= best.objective * 0.8


def test_the_same_program_has_the_same_answer() -> None:
    weights, values = [13, 17, 19, 23, 29, 31], [13, 17, 19, 23, 29, 31]
    program = _knapsack(weights, values, 66, True)
    assert solve(program) == solve(program)
    assert solve(program, nodes=1) == solve(program, nodes=1)


def test_nothing_is_printed() -> None:
    script = "from interlace.packing.solver import *; solve(LinearProgram([], [], [], [], []))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b""


def test_programs_without_rows_or_columns() -> None:
    found = solve(LinearProgram([1.0, -1.0], [2.0, 0.0], [5.0, 4.0], [True, False], []))
    assert found.values == pytest.approx((2.0, 4.0))
    nothing = solve(LinearProgram([], [], [], [], []))
    assert nothing.values == () and nothing.objective in (0.0, inf)
