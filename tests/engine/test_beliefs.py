"""Beliefs follow what is seen; caution follows what is broken."""

from __future__ import annotations

import random

import pytest

from interlace.core.plan import Demand
from interlace.engine.beliefs import Belief, Caution
from tests.builders import line_profile

DEMAND = Demand("m", 10.0, 100.0, 16)


def test_a_belief_follows_the_upper_quantile_of_what_is_seen() -> None:
    belief = Belief(DEMAND, line_profile("m", 4.0, 1.0))
    chooser, inside = random.Random(3), 0
    for step in range(4_000):
        seen_ms = 5.0 * chooser.lognormvariate(0.5, 0.25)
        inside += step >= 1_000 and seen_ms <= belief.latency_ms(1, 50, "s")
        belief.learn(1, 50, "s", seen_ms, float(step))
    assert 0.8 < inside / 3_000 < 0.98


def test_shapes_have_corrections_of_their_own() -> None:
    belief = Belief(DEMAND, line_profile("m", 4.0, 1.0))
    for step in range(400):
        belief.learn(1, 50, "small", 5.0, float(step))
        belief.learn(1, 50, "large", 25.0, float(step))
    assert belief.latency_ms(1, 50, "large") > 3.0 * belief.latency_ms(1, 50, "small")


def test_refusals_brighten_a_stale_belief_until_something_is_tried() -> None:
    belief = Belief(DEMAND, line_profile("m", 4.0, 1.0))
    for step in range(50):
        belief.learn(1, 50, "s", 50.0, float(step))
    dark_ms = belief.latency_ms(1, 50, "s")
    belief.doubt("s", 60.0)
    assert belief.latency_ms(1, 50, "s") == dark_ms, "fresh experience is not doubted"
    for _ in range(100):
        belief.doubt("s", 5_000.0)
    assert belief.latency_ms(1, 50, "s") < dark_ms / 3.0


def test_caution_settles_where_few_miss() -> None:
    caution, chooser, missed = Caution(100.0), random.Random(5), 0
    for step in range(60_000):
        # The error of a prediction, in ms; a request misses if it exceeds the margin.
        if chooser.expovariate(1 / 6.0) > caution.margin_ms:
            caution.missed(float(step), float(step))
            missed += step >= 20_000
        else:
            caution.kept()
    assert 0.0002 < missed / 40_000 < 0.003


def test_one_stall_widens_the_margin_once() -> None:
    caution = Caution(100.0)
    least_ms = caution.margin_ms
    for request in range(50):
        caution.missed(arrived_ms=float(request), now_ms=200.0 + request)
    once_ms = caution.margin_ms
    caution.missed(arrived_ms=300.0, now_ms=400.0)
    assert least_ms < once_ms
    assert caution.margin_ms - once_ms == pytest.approx(once_ms - least_ms)


def test_caution_is_bounded_and_fades() -> None:
    caution = Caution(100.0)
    for step in range(1_000):
        caution.missed(float(step), float(step))
    assert caution.margin_ms <= 100.0
    for _ in range(40_000):
        caution.kept()
    assert caution.margin_ms == Caution(100.0).margin_ms
