"""Splits of an SLO: feasible, as cheap as the cheapest of all, and the known rules."""

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.apps.budgets import (
    CLOSE,
    SPLITS,
    StepCost,
    _longest,
    by_work,
    exact,
    step_cost,
)

CHAIN = ((1,), (2,), ())
DIAMOND = ((1, 2), (3,), (3,), ())
N_SHAPE = ((2, 3), (3,), (), ())  #: not series-parallel
GRAPHS = (CHAIN, DIAMOND, N_SHAPE, ((), ()), ((2,), (2,), ()))


def cheapest(readers: tuple[tuple[int, ...], ...], costs: list[StepCost], slo_ms: float) -> float:
    """Over every choice of batch sizes."""
    found = float("inf")
    for times in product(*(cost.times_ms for cost in costs)):
        if _longest(readers, times) <= slo_ms:
            pairs = zip(costs, times, strict=True)
            found = min(found, sum(cost.at(time_ms) for cost, time_ms in pairs))
    return found


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[tuple[int, ...], ...], list[StepCost], float]:
    readers = draw(st.sampled_from(GRAPHS))
    random = Random(draw(st.integers(0, 10_000)))
    costs = []
    for _ in readers:
        base, slope = random.uniform(0.5, 20.0), random.uniform(0.05, 3.0)
        rate = random.uniform(10.0, 2000.0)
        costs.append(step_cost([base + slope * rows for rows in range(1, 7)], rate))
    least = _longest(readers, [cost.least_ms for cost in costs])
    return readers, costs, least * random.uniform(0.9, 6.0)


@given(problems())
def test_exact_is_feasible_and_as_cheap_as_the_cheapest_of_all(
    problem: tuple[tuple[tuple[int, ...], ...], list[StepCost], float],
) -> None:
    readers, costs, slo_ms = problem
    budgets = exact(readers, costs, slo_ms)
    best = cheapest(readers, costs, slo_ms)
    if budgets is None:
        assert readers is N_SHAPE or best == float("inf")
        return
    assert _longest(readers, budgets) <= slo_ms * (1 + 1e-9)
    found = sum(cost.at(own + 1e-6) for cost, own in zip(costs, budgets, strict=True))
    assert found >= best - 1e-9
    if readers is not N_SHAPE:
        assert found <= CLOSE * best + 1e-9


@pytest.mark.parametrize("rule", SPLITS)
@given(problem=problems())
def test_every_rule_keeps_the_slo(
    rule: str, problem: tuple[tuple[tuple[int, ...], ...], list[StepCost], float]
) -> None:
    readers, costs, slo_ms = problem
    budgets = SPLITS[rule](readers, costs, slo_ms)
    if budgets is not None:
        assert _longest(readers, budgets) <= slo_ms * (1 + 1e-9)
    elif rule in ("inferline", "harpagon"):
        assert cheapest(readers, costs, slo_ms) == float("inf")


def test_work_divides_the_longest_path_through_each_step() -> None:
    assert by_work(CHAIN, [1.0, 2.0, 1.0], 40.0) == [10.0, 20.0, 10.0]
    assert by_work(DIAMOND, [1.0, 2.0, 1.0, 1.0], 40.0) == pytest.approx([10.0, 20.0, 40 / 3, 10.0])
    assert by_work(CHAIN, [1.0] * 3, 30.0) == [10.0] * 3


def test_a_row_waits_for_its_batch_or_for_the_one_before() -> None:
    cost = step_cost([11.0, 12.0], 1000.0)
    assert cost.times_ms == (11.0, 24.0)
    assert cost.costs == pytest.approx((11.0, 6.0))
    slow = step_cost([11.0, 12.0], 10.0)
    assert slow.times_ms == (11.0, 112.0), "the second row comes 100 ms later"
    assert cost.at(23.0) == pytest.approx(11.0)
    assert cost.at(10.0) == float("inf")
