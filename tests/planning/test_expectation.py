"""What a plan promises: against exact queues in virtual time, and at its edges."""

from __future__ import annotations

import numpy as np
import pytest

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile
from interlace.planning.expectation import expect

GPU = Gpu("g", "k", 100, 10**9, (50, 100))


def _profile(ms: float) -> Profile:
    points = {
        (batch, 100): LatencyPoint(ms * batch, ms * batch, ms * batch, 1) for batch in (1, 2, 4)
    }
    return Profile("m", "d", "k", 1, 1, points)


def _expected(rate_rps: float, slo_ms: float, unserved: float = 0.0) -> tuple[float, float]:
    plan = Plan(
        (Partition("g:0", "g", 100, (Slot("m", 1, rate_rps),)),),
        {"m": unserved} if unserved else {},
    )
    found = expect(plan, [Demand("m", rate_rps, slo_ms)], {"g": GPU}, {"m": _profile(4.0)})["m"]
    return found.p99_ms, found.attainment


def test_a_single_server_is_met_from_above() -> None:
    """M/D/1 at 80 %: the prediction is no better than the queue, and not twice as bad."""
    random = np.random.default_rng(3)
    gaps = random.exponential(5.0, 100_000)
    wait, waits = 0.0, []
    for gap in gaps:
        waits.append(wait)
        wait = max(0.0, wait + 4.0 - gap)
    true_ms = float(np.quantile(waits, 0.99)) + 4.0
    p99_ms, _ = _expected(200.0, 50.0)
    assert true_ms <= p99_ms * 1.02
    assert p99_ms <= 2 * true_ms


def test_attainment_falls_with_the_slo_and_the_rate() -> None:
    parts = [_expected(200.0, slo)[1] for slo in (3.0, 6.0, 12.0, 50.0, 200.0)]
    assert parts == sorted(parts)
    assert parts[0] == 0.0
    assert parts[-1] == pytest.approx(1.0, abs=1e-4)
    rates = [_expected(rate, 30.0)[1] for rate in (10.0, 100.0, 200.0, 240.0)]
    assert rates == sorted(rates, reverse=True)


def test_an_overloaded_partition_promises_nothing() -> None:
    p99_ms, attainment = _expected(251.0, 50.0)
    assert p99_ms == float("inf")
    assert attainment == 0.0


def test_what_is_unserved_is_in_time_for_nobody() -> None:
    assert _expected(100.0, 1000.0, unserved=100.0)[1] == pytest.approx(0.5, abs=1e-3)
