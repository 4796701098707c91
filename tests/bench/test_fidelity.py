"""Figures of a run, gaps between two, and the twin's trace, on records made by hand."""

import math

import pytest

from bench.fidelity.measured import Measured, Pairs, slowdown
from bench.fidelity.run import cases, demand
from bench.fidelity.twin import Figures, at_the_moment, figures, gap, sent
from interlace.core.request import Outcome
from interlace.perf.latency import surface
from interlace.sim.record import RunRecord, ServedRequest
from tests.builders import line_profile


def _served(model: str, arrived_ms: float, took_ms: float, outcome: Outcome) -> ServedRequest:
    ended_ms = arrived_ms + took_ms
    return ServedRequest(
        model, arrived_ms, arrived_ms + 50.0, ended_ms, arrived_ms, outcome, 1, 1, "p"
    )


RECORD = RunRecord(
    1000.0,
    3000.0,
    ("g",),
    [
        _served("b", 1500.0, 10.0, Outcome.OK),
        _served("a", 1100.0, 20.0, Outcome.OK),
        _served("a", 2100.0, 60.0, Outcome.LATE),
        _served("a", 2200.0, 0.0, Outcome.REFUSED),
    ],
    [],
    (),
)


def test_only_replies_in_time_are_goodput_and_refusals_have_no_latency() -> None:
    found = figures(RECORD)
    assert found.goodput_rps == 1.0
    assert found.p50_ms == 20.0
    assert 59.0 < found.p99_ms <= 60.0


def test_nothing_answered_has_no_latency() -> None:
    empty = RunRecord(0.0, 1000.0, ("g",), [], [], ())
    assert figures(empty).goodput_rps == 0.0
    assert math.isnan(figures(empty).p50_ms)


def test_a_gap_says_which_way_the_simulator_errs() -> None:
    one = gap(Figures(100.0, 10.0, 40.0), Figures(97.0, 11.0, 30.0))
    assert one.goodput == pytest.approx(-0.03)
    assert one.p50 == pytest.approx(0.1)
    assert one.p99 == pytest.approx(-0.25)


def test_the_twin_gets_the_times_at_which_the_live_run_sent() -> None:
    arrivals = sent(RECORD, ["a", "b"], 2.0)
    assert arrivals.times_ms.tolist() == [100.0, 500.0, 1100.0, 1200.0]
    assert arrivals.which.tolist() == [0, 1, 0, 0]


def test_a_load_is_part_of_what_the_machine_does_at_its_best_batches() -> None:
    profiles = {m: line_profile(m, 2.0, 1.0, max_batch=8) for m in ("a", "b")}
    (case, *_) = cases(["interlace"], [0.5])
    one, other = demand(profiles, case)
    assert one.rows_per_s == other.rows_per_s == pytest.approx(0.5 * 2 / 2 * 1000.0 / (10.0 / 8))
    assert one.slo_ms == case.slo_factor * 3.0


def test_profiles_follow_the_machine_s_speed_and_spread_of_the_moment() -> None:
    profile = line_profile("a", 2.0, 1.0, max_batch=8)
    measured = Measured({"a": profile}, Pairs({("a", "a"): 1.1}))
    usual_ms = surface(profile, "median_ms").latency_ms(1, 50)
    look = {"a": {1: [usual_ms * 1.1 * 1.2] * 99 + [usual_ms * 1.1 * 2.4]}}
    moved = at_the_moment(measured, [look, look], 50)["a"]
    for key, point in moved.points.items():
        assert point.median_ms == pytest.approx(profile.points[key].median_ms * 1.2)
        assert point.p95_ms == pytest.approx(point.median_ms)
        assert point.median_ms < point.p99_ms < 2.0 * point.median_ms


def test_a_pair_slows_as_much_as_its_sizes_do_on_average() -> None:
    alone, beside = {1: [10.0, 11.0, 12.0], 4: [40.0]}, {1: [22.0], 4: [44.0]}
    assert slowdown(beside, alone) == pytest.approx((2.0 + 1.1) / 2)
