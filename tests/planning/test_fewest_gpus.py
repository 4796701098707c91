"""The plan is the fewest that the engine keeps: tight SLOs, limits, GPUs to spare, many models."""

from dataclasses import replace

import pytest

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.planning.capacity_plan import plan
from interlace.planning.pool_search import PoolSearch
from interlace.planning.scenario import Scenario
from interlace.planning.simulated_plan import PlanTrials
from interlace.policy.catalog import resolve

TURING, A100 = GPU_KINDS["2080ti"], GPU_KINDS["a100"]
_BATCHES = (1, 4, 16, 32)


def _profile(name: str, gpu: Gpu, fixed_ms: float, row_ms: float, steep: float = 0.0) -> Profile:
    """L = (fixed + row b), (100 / share)^steep times as long on a share."""
    points = {}
    for share in gpu.shares_pct if steep else (100,):
        for batch in _BATCHES:
            ms = (fixed_ms + row_ms * batch) * (100.0 / share) ** steep
            points[batch, share] = LatencyPoint(ms, ms, ms, 1)
    return Profile(name, "d", gpu.kind, 400 * 10**6, 200 * 10**6, points)


#: SLO in L(1), requests/s, and the fewest GPUs that are known to keep 99 % of them for long.
TIGHT = [(1.2, 200, 3), (1.5, 20, 2), (1.7, 1000, 2), (2.0, 20, 1)]
TOO = [
    (1.2, 20, 2), (1.2, 1000, 6), (1.5, 200, 2), (1.5, 1000, 3), (1.7, 20, 2), (1.7, 200, 2),
    (1.9, 20, 1), (1.9, 200, 2), (1.9, 1000, 2), (2.0, 200, 2), (2.0, 1000, 2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("slo", "rate_rps", "fewest"),
    [*TIGHT, *(pytest.param(*one, marks=pytest.mark.long) for one in TOO)],
)
def test_an_slo_below_two_latencies_takes_at_most_one_gpu_more_than_the_fewest(
    slo: float, rate_rps: int, fewest: int
) -> None:
    asked = Demand("m", float(rate_rps), slo * 2.1, 32)
    known = {"m": _profile("m", TURING, 2.0, 0.1)}
    found = plan(Scenario((asked,), TURING, known, limit=64))
    assert found.kept
    assert fewest <= found.gpus <= fewest + 1


def test_a_tight_promise_to_nearly_all_is_planned_for() -> None:
    points = {
        (batch, 100): LatencyPoint(ms, ms, ms, 1)
        for batch, ms in ((1, 34.5), (2, 37.0), (4, 43.0), (8, 58.0))
    }
    known = {"m": Profile("m", "d", "titan-rtx", 10**6, 10**6, points)}
    for attainment, most in ((0.99, 3), (0.999, 4)):
        asked = Demand("m", 14.0, 57.0, 32, attainment)
        found = plan(Scenario((asked,), GPU_KINDS["titan-rtx"], known, limit=64))
        assert found.kept
        assert found.gpus <= most


def _many(count: int, limit: int) -> Scenario:
    """Models of low rates on GPUs that can be cut finely."""
    rates = (120.0, 20.0, 5.0, 50.0)
    profiles, demand = {}, []
    for number in range(count):
        name = f"m{number:02}"
        fixed_ms, row_ms = 1.0 + number % 5 * 0.6, 0.15 + number % 7 * 0.06
        profiles[name] = _profile(name, A100, fixed_ms, row_ms, steep=0.45)
        first_ms = fixed_ms + row_ms
        slo_ms = first_ms * (9.0 + number % 3 * 2.0)
        demand.append(Demand(name, rates[number % 4], slo_ms, 32))
    return Scenario(tuple(demand), A100, profiles, limit=limit)


@pytest.mark.parametrize("count", [2, pytest.param(16, marks=pytest.mark.long)])
def test_more_gpus_allowed_never_cost_more_gpus(count: int) -> None:
    told = [plan(_many(count, limit)) for limit in (1, 2, 6)]
    assert all(one.kept for one in told)
    assert len({one.gpus for one in told}) == 1


def test_gpus_to_spare_are_used_before_a_promise_is_told_to_be_broken() -> None:
    """One rare, bursty model of a tight SLO beside others that fill what it would wait for."""
    known = _many(4, 64)
    profiles = {**known.profiles, "tight": _profile("tight", A100, 2.4, 0.1, steep=0.45)}
    tight = Demand("tight", 9.0, 4.4, 32, cv=1.9)
    found = plan(replace(known, demand=(*known.demand, tight), profiles=profiles))
    assert found.kept, found.sentences()
    assert found.gpus <= 3


def test_lanes_that_overlap_are_tried_however_little_is_asked_for() -> None:
    """Where pools break a promise at more load, these keep it: so they must at less load."""
    known = _many(8, 2)
    little = [replace(one, rows_per_s=one.rows_per_s / 20.0) for one in known.demand]
    trials = PlanTrials(replace(known, demand=tuple(little)), resolve("interlace"))
    found = PoolSearch(trials, Plan()).overlapped(1, 1)
    assert found is not None and found.plan.overlapping and found.kept
    assert found.plan.headroom is None or found.plan.headroom > 4.0
