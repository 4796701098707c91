"""Beliefs follow what is seen; admission_margin follows what is broken."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.plan import Demand
from interlace.core.profile import LatencyPoint, Profile
from interlace.engine.corrections import AdmissionMargin, LatencyEstimator
from tests.builders import line_profile

DEMAND = Demand("m", 10.0, 100.0, 16)


def test_a_belief_follows_the_upper_quantile_of_what_is_seen() -> None:
    estimator = LatencyEstimator(DEMAND, line_profile("m", 4.0, 1.0))
    chooser, inside = random.Random(3), 0
    for step in range(4_000):
        seen_ms = 5.0 * chooser.lognormvariate(0.5, 0.25)
        inside += step >= 1_000 and seen_ms <= estimator.latency_ms(1, 50, "s")
        estimator.learn(1, 50, "s", seen_ms, float(step))
    assert 0.8 < inside / 3_000 < 0.98


def test_latencies_that_do_not_vary_are_predicted_exactly_from_the_first_on() -> None:
    estimator = LatencyEstimator(DEMAND, line_profile("m", 4.0, 1.0))
    for seen_ms in (5.0 - 1e-12, 5.0, 5.0 + 1e-12, *[5.0] * 20):
        estimator.learn(1, 50, "s", seen_ms, 0.0)
        assert estimator.latency_ms(1, 50, "s") == pytest.approx(5.0, rel=1e-9)


@pytest.mark.parametrize("times", [100.0, 1e4])
def test_code_that_becomes_many_times_slower_is_predicted_exactly(times: float) -> None:
    estimator = LatencyEstimator(DEMAND, line_profile("m", 4.0, 1.0))
    for step in range(200):
        estimator.learn(1, 50, "s", 5.0 * times, float(step))
    assert estimator.latency_ms(1, 50, "s") == pytest.approx(5.0 * times, rel=1e-9)


def test_shapes_have_corrections_of_their_own() -> None:
    estimator = LatencyEstimator(DEMAND, line_profile("m", 4.0, 1.0))
    for step in range(400):
        estimator.learn(1, 50, "small", 5.0, float(step))
        estimator.learn(1, 50, "large", 25.0, float(step))
    assert estimator.latency_ms(1, 50, "large") > 3.0 * estimator.latency_ms(1, 50, "small")


def scaled(one: LatencyPoint, factor: float) -> LatencyPoint:
    median_ms, p95_ms, p99_ms = (factor * ms for ms in (one.median_ms, one.p95_ms, one.p99_ms))
    return LatencyPoint(median_ms, p95_ms, p99_ms, one.samples)


def wrong_profile(factor: float) -> Profile:
    """Right at batch 1, and ``factor`` times the true 4 ms + 1 ms a row above it."""
    right = line_profile("m", 4.0, 1.0)
    points = {
        (batch, share): one if batch == 1 else scaled(one, factor)
        for (batch, share), one in right.points.items()
    }
    return replace(right, points=points)


def test_sizes_that_never_run_are_bounded_by_those_that_do() -> None:
    estimator = LatencyEstimator(DEMAND, wrong_profile(8.0))
    for step in range(100):
        estimator.learn(1, 50, "s", 5.0, float(step))
    for rows in (2, 4, 8, 16):
        assert estimator.latency_ms(rows, 50, "s") <= 5.0 * rows * (1.0 + 1e-9)


def test_one_size_is_corrected_apart_from_others() -> None:
    """The profile is right at batch 1 and four times too slow above; both keep running."""
    estimator = LatencyEstimator(DEMAND, wrong_profile(4.0))
    for step in range(2_000):
        for rows in (1, 16):
            estimator.learn(rows, 50, "s", 4.0 + rows, float(step))
    assert estimator.latency_ms(1, 50, "s") == pytest.approx(5.0, rel=0.15)
    assert estimator.latency_ms(16, 50, "s") == pytest.approx(20.0, rel=0.15)


def test_one_share_is_corrected_apart_from_others() -> None:
    estimator = LatencyEstimator(DEMAND, line_profile("m", 4.0, 1.0))
    small_ms = estimator.latency_ms(4, 50)
    large_ms = estimator.latency_ms(4, 100)
    for step in range(2_000):
        estimator.learn(4, 50, "s", 2.0 * small_ms, float(step))
        estimator.learn(4, 100, "s", large_ms, float(step))
    assert estimator.latency_ms(4, 50, "s") == pytest.approx(2.0 * small_ms, rel=0.15)
    assert estimator.latency_ms(4, 100, "s") == pytest.approx(large_ms, rel=0.15)


def test_a_share_that_does_not_run_follows_one_that_does() -> None:
    estimator = LatencyEstimator(DEMAND, line_profile("m", 4.0, 1.0))
    expected_ms = 3.0 * estimator.latency_ms(4, 100)
    for step in range(500):
        estimator.learn(4, 50, "s", 3.0 * 8.0, float(step))
    assert estimator.latency_ms(4, 100, "s") == pytest.approx(expected_ms, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 500.0)), max_size=60))
def test_no_batch_is_believed_faster_than_a_smaller_one(runs: list[tuple[int, float]]) -> None:
    estimator = LatencyEstimator(DEMAND, line_profile("m", 4.0, 1.0))
    for step, (rows, seen_ms) in enumerate(runs):
        estimator.learn(rows, 50, "s", seen_ms, float(step))
    believed_ms = [estimator.latency_ms(rows, 50, "s") for rows in range(1, 41)]
    assert believed_ms == sorted(believed_ms)
    assert believed_ms[0] > 0.0


def test_a_profile_far_above_what_is_seen_is_corrected() -> None:
    """It was measured on a busy machine: 150 times what executions take."""
    estimator = LatencyEstimator(DEMAND, line_profile("m", 745.0, 5.0))
    for step in range(2_000):
        estimator.learn(1, 50, "s", 5.0, float(step))
    assert 5.0 <= estimator.latency_ms(1, 50, "s") < 10.0


def test_a_profile_that_no_execution_comes_near_is_corrected_soon() -> None:
    estimator, doubted = (LatencyEstimator(DEMAND, line_profile("m", 16.0, 4.0)) for _ in range(2))
    doubted.learn(1, 50, "s", 20.0, 0.0)  # as slow as predicted, so faster ones may be chance
    for step in range(150):
        estimator.learn(1, 50, "s", 5.0, float(step))
        doubted.learn(1, 50, "s", 5.0, float(step))
    assert estimator.latency_ms(1, 50, "s") == pytest.approx(5.0)
    assert doubted.latency_ms(1, 50, "s") > 10.0


def test_refusals_alone_correct_no_profile_by_more_than_half() -> None:
    estimator = LatencyEstimator(DEMAND, line_profile("m", 4.0, 1.0))
    assert estimator.latency_ms(1, 50, "s") == 5.0
    for _ in range(1_000):
        estimator.decay("s", 5_000.0)
    assert estimator.latency_ms(1, 50, "s") == pytest.approx(2.5)


def test_refusals_brighten_a_stale_belief_until_something_is_tried() -> None:
    estimator = LatencyEstimator(DEMAND, line_profile("m", 4.0, 1.0))
    for step in range(50):
        estimator.learn(1, 50, "s", 50.0, float(step))
    dark_ms = estimator.latency_ms(1, 50, "s")
    estimator.decay("s", 60.0)
    assert estimator.latency_ms(1, 50, "s") == dark_ms, "fresh experience is not doubted"
    for _ in range(100):
        estimator.decay("s", 5_000.0)
    assert estimator.latency_ms(1, 50, "s") < dark_ms / 3.0


def test_caution_settles_where_few_miss() -> None:
    admission_margin, chooser, missed = AdmissionMargin(100.0), random.Random(5), 0
    for step in range(60_000):
        # The error of a prediction, in ms; a request misses if it exceeds the margin.
        if chooser.expovariate(1 / 6.0) > admission_margin.margin_ms:
            admission_margin.missed(float(step), float(step))
            missed += step >= 20_000
        else:
            admission_margin.met()
    assert 0.0002 < missed / 40_000 < 0.003


def test_one_stall_widens_the_margin_once() -> None:
    admission_margin = AdmissionMargin(100.0)
    least_ms = admission_margin.margin_ms
    for request in range(50):
        admission_margin.missed(arrived_ms=float(request), now_ms=200.0 + request)
    once_ms = admission_margin.margin_ms
    admission_margin.missed(arrived_ms=300.0, now_ms=400.0)
    assert least_ms < once_ms
    assert admission_margin.margin_ms - once_ms == pytest.approx(once_ms - least_ms)


def test_caution_is_bounded_and_fades() -> None:
    admission_margin = AdmissionMargin(100.0)
    for step in range(1_000):
        admission_margin.missed(float(step), float(step))
    assert admission_margin.margin_ms <= 100.0
    for _ in range(40_000):
        admission_margin.met()
    assert admission_margin.margin_ms == AdmissionMargin(100.0).margin_ms


def test_drops_widen_the_margin_only_where_they_are_many() -> None:
    few, many = AdmissionMargin(100.0), AdmissionMargin(100.0)
    least_ms = few.margin_ms
    for _ in range(100):
        few.dropped()
        many.dropped()
        many.dropped()
        for _ in range(30):
            few.met()
            many.met()
    assert few.margin_ms == least_ms
    assert many.margin_ms > least_ms + 1.0
