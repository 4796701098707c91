"""Plans tried in virtual time: who is served, who cannot be, and the same answer twice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bench.planning.attainment import attainment
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import LatencyPoint, Profile

FLEET = uniform_fleet(GPU_KINDS["v100"], 1)
SECONDS = 5.0


def _profile(model: str, fixed_ms: float = 2.0, row_ms: float = 1.0) -> Profile:
    points = {}
    for share in (50, 100):
        for batch in (1, 2, 4, 8):
            ms = (fixed_ms + row_ms * batch) * 100 / share
            points[batch, share] = LatencyPoint(ms, ms, ms, 1)
    return Profile(model, "d", "v100", 10**6, 10**6, points)


PROFILES = {model: _profile(model) for model in ("a", "b")}


def _halves(rate_rps: float) -> Plan:
    return Plan(
        tuple(
            Partition(f"p-{model}", "gpu0", 50, (Slot(model, 8, rate_rps),), duty_ms=20.0)
            for model in ("a", "b")
        )
    )


def _tried(
    rate_rps: float,
    slo_ms: float = 100.0,
    cv: float = 1.0,
    seed: int = 0,
    system: str = "interlace",
) -> Mapping[str, float]:
    demand = [Demand(model, rate_rps, slo_ms, 8, cv=cv) for model in ("a", "b")]
    return attainment(_halves(rate_rps), demand, FLEET, PROFILES, SECONDS, seed, system)


@pytest.mark.parametrize("system", ["interlace", "gpulet", "dstack", "temporal"])
def test_light_loads_are_served_whole(system: str) -> None:
    assert _tried(40.0, system=system) == {"a": 1.0, "b": 1.0}


def test_no_more_is_served_in_time_than_a_partition_can() -> None:
    """Half of the accelerator serves 8 rows in 20 ms: 400 requests/s of each model at most."""
    for served in _tried(800.0).values():
        assert 0.35 < served <= 0.5 * 1.05


def test_nobody_is_in_time_below_the_latency_of_one_row() -> None:
    """One row takes 6 ms in a partition of 50 %."""
    assert set(_tried(20.0, slo_ms=5.9).values()) == {0.0}


def test_bursts_harm() -> None:
    assert min(_tried(300.0, slo_ms=60.0, cv=4.0).values()) < min(
        _tried(300.0, slo_ms=60.0).values()
    )


def test_a_seed_tells_the_whole_story() -> None:
    crowded = _tried(380.0, slo_ms=60.0, seed=1)
    assert crowded == _tried(380.0, slo_ms=60.0, seed=1)
    assert crowded != _tried(380.0, slo_ms=60.0, seed=2)


def test_a_model_that_the_plan_leaves_out_is_not_served() -> None:
    demand = [Demand(model, 20.0, 100.0, 8) for model in ("a", "b")]
    alone = Plan(_halves(20.0).partitions[:1], {"b": 20.0}, {"b": "left out"})
    found = attainment(alone, demand, FLEET, PROFILES, SECONDS)
    assert found["a"] == 1.0
    assert found["b"] == 0.0
