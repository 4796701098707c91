"""Beliefs follow what is seen; admission_margin follows what is broken."""

import random

import pytest

from interlace.core.plan import Demand
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


def test_shapes_have_corrections_of_their_own() -> None:
    estimator = LatencyEstimator(DEMAND, line_profile("m", 4.0, 1.0))
    for step in range(400):
        estimator.learn(1, 50, "small", 5.0, float(step))
        estimator.learn(1, 50, "large", 25.0, float(step))
    assert estimator.latency_ms(1, 50, "large") > 3.0 * estimator.latency_ms(1, 50, "small")


def test_a_profile_far_above_what_is_seen_is_corrected() -> None:
    """It was measured on a busy machine: 150 times what executions take."""
    estimator = LatencyEstimator(DEMAND, line_profile("m", 745.0, 5.0))
    for step in range(2_000):
        estimator.learn(1, 50, "s", 5.0, float(step))
    assert 5.0 <= estimator.latency_ms(1, 50, "s") < 10.0


def test_refusals_alone_correct_no_profile_by_more_than_half() -> None:
    estimator = LatencyEstimator(DEMAND, line_profile("m", 4.0, 1.0))
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
