"""The rate of a model that is asked seldom."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.engine.residency import GapEstimator


@given(st.lists(st.floats(0.0, 1e5), max_size=50), st.floats(0.0, 1e5), st.floats(0.0, 100.0))
def test_it_is_a_rate_and_falls_while_nothing_comes(
    gaps: list[float], idle_ms: float, planned: float
) -> None:
    rate, now_ms = GapEstimator(0.0, planned, visit_ms=5.0), 0.0
    for gap in gaps:
        now_ms += gap
        rate.arrived(now_ms)
    assert 0.0 <= rate.rps(now_ms + idle_ms) <= rate.rps(now_ms)
    assert rate.rps(now_ms + 2 * idle_ms) <= rate.rps(now_ms + idle_ms) + 1e-9


def test_it_finds_the_rate_whatever_was_planned_and_follows_a_change() -> None:
    drawn = Random(1)
    rate, now_ms = GapEstimator(0.0, planned_rps=5.0), 0.0
    assert rate.rps(0.0) == pytest.approx(5.0)
    for rps in (0.5, 8.0):
        for _ in range(200):
            now_ms += drawn.expovariate(rps / 1000.0)
            rate.arrived(now_ms)
        assert rate.rps(now_ms) == pytest.approx(rps, rel=0.4)
    assert rate.rps(now_ms + 60_000.0) < 1.0


def test_a_burst_is_one_visit_and_the_unasked_have_no_rate() -> None:
    rate = GapEstimator(0.0, visit_ms=100.0)
    assert rate.rps(9e9) == 0.0
    for second in range(1, 6):
        for number in range(10):
            rate.arrived(1000.0 * second + number)
    assert rate.rps(5100.0) == pytest.approx(1.0)
