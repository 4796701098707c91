"""Figures of records made by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.request import Outcome
from interlace.sim.record import Execution, PartitionSpan, RunRecord, ServedRequest
from interlace.sim.report import gpus_over_time, jain, mean_gpus, report, service_gap_ms


def _served(
    model: str, at_ms: float, start_ms: float, end_ms: float, outcome: Outcome
) -> ServedRequest:
    ran = outcome in (Outcome.OK, Outcome.LATE)
    started = start_ms if ran else float("nan")
    where, rows = ("p", 2) if ran else ("", 0)
    return ServedRequest(model, at_ms, at_ms + 20.0, end_ms, started, outcome, 1, rows, where)


SERVED = [
    _served("a", 0.0, 5.0, 10.0, Outcome.OK),
    _served("a", 1.0, 5.0, 10.0, Outcome.OK),
    _served("b", 2.0, 10.0, 30.0, Outcome.LATE),
    _served("b", 3.0, 0.0, 3.0, Outcome.REFUSED),
]
RUNS = [
    Execution("g0", "p", 50, "a", 2, 5.0, 10.0, False),
    Execution("g0", "q", 100, "b", 1, 10.0, 30.0, False),
]
SPANS = [PartitionSpan("g0", "p", 50, -100.0, math.inf), PartitionSpan("g1", "r", 100, 25.0, 75.0)]
RECORD = RunRecord(0.0, 100.0, ("g0", "g1"), SERVED, RUNS, SPANS)


def test_totals_and_models() -> None:
    found = report(RECORD)
    assert (found.requests, found.goodput_rps, found.attainment) == (4, 20.0, 0.5)
    assert found.worst_attainment == 0.0
    assert found.outcomes["ok"] == 2
    assert found.outcomes["refused"] == 1
    assert found.models["a"].latency.p50_ms == pytest.approx(9.5)
    assert found.models["a"].latency.queue_ms == pytest.approx(4.5)
    assert found.models["a"].latency.compute_ms == pytest.approx(5.0)
    assert found.models["a"].mean_batch == 2.0
    assert found.models["a"].batches == {2: 1}
    assert found.models["b"].p99_over_slo == pytest.approx(28.0 / 20.0)


def test_utilisation_weighs_time_by_share() -> None:
    found = report(RECORD)
    assert found.utilisation == {"g0": pytest.approx(0.225), "g1": 0.0}
    assert found.models["a"].service_ms == pytest.approx(2.5)


def test_accelerators_are_counted_while_they_hold_a_partition() -> None:
    assert gpus_over_time(RECORD) == [(0.0, 1), (25.0, 2), (75.0, 1)]
    assert mean_gpus(RECORD) == pytest.approx(1.5)


def test_an_empty_run_has_figures_too() -> None:
    found = report(RunRecord(0.0, 1000.0, ("g0",), [], [], []))
    assert found.requests == 0
    assert found.goodput_rps == 0.0
    assert math.isnan(found.latency.p99_ms)


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=10))
def test_jain_lies_between_one_over_n_and_one(values: list[float]) -> None:
    assert 1.0 / len(values) - 1e-9 <= jain(values) <= 1.0 + 1e-9


def test_the_gap_counts_only_while_both_wait() -> None:
    served = [
        _served("a", 0.0, 50.0, 60.0, Outcome.OK),
        _served("b", 0.0, 90.0, 99.0, Outcome.LATE),
        _served("a", 55.0, 56.0, 57.0, Outcome.OK),
    ]
    runs = [
        Execution("g0", "p", 100, "a", 1, 10.0, 20.0, False),
        Execution("g0", "p", 100, "a", 1, 20.0, 40.0, False),
        Execution("g0", "p", 100, "b", 1, 40.0, 45.0, False),
        Execution("g0", "p", 100, "a", 1, 60.0, 90.0, False),  # nobody of a waits then
    ]
    assert service_gap_ms(RunRecord(0.0, 100.0, ("g0",), served, runs, [])) == pytest.approx(30.0)
