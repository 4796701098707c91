"""Accelerators that are there but not needed, and the last digits of a profile, change no plan."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planning.cost import question
from bench.planning.gpulet_profiles import MODELS
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Fleet
from interlace.core.plan import Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.policy.base import Planner
from interlace.policy.fewest import fewest
from interlace.policy.planners.ideal import Ideal
from interlace.policy.planners.patterns import Patterns
from tests.policy.test_patterns import GPU, PROFILES, demand_of, used

FRUGAL = [Patterns(), Ideal(steps=500)]


@pytest.mark.parametrize("packer", FRUGAL)
@settings(max_examples=8, deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(MODELS)), st.floats(5.0, 500.0), min_size=1, max_size=5),
    st.integers(0, 20),
)
def test_a_limit_that_does_not_bind_changes_nothing(
    packer: Planner, rates: dict[str, float], more: int
) -> None:
    """Hence nothing is to be gained by asking a frugal packer again with fewer accelerators."""
    demand = demand_of(**rates)
    free = packer(demand, uniform_fleet(GPU, 32), PROFILES, Plan())
    assert not free.unserved_rows_per_s
    bound = packer(demand, uniform_fleet(GPU, used(free) + more), PROFILES, Plan())
    assert bound.partitions == free.partitions and not bound.unserved_rows_per_s


@settings(max_examples=8, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(MODELS)), st.floats(50.0, 900.0), min_size=2))
def test_a_limit_that_binds_is_used_up_and_what_is_left_is_told(rates: dict[str, float]) -> None:
    demand = demand_of(**rates)
    free = Patterns()(demand, uniform_fleet(GPU, 40), PROFILES, Plan())
    if used(free) == 1:
        return
    short = Patterns()(demand, uniform_fleet(GPU, used(free) - 1), PROFILES, Plan())
    assert used(short) <= used(free) - 1 and short.unserved_rows_per_s
    for one in demand:
        served = sum(
            s.rows_per_s for p in short.partitions for s in p.slots if s.model == one.model
        )
        left = short.unserved_rows_per_s.get(one.model, 0.0)
        assert served + left == pytest.approx(one.rows_per_s, rel=1e-5)


@pytest.mark.parametrize("kind", ["a100", "a100-mig"])
@pytest.mark.parametrize("seed", range(3))
def test_the_last_digits_of_a_latency_change_no_count(kind: str, seed: int) -> None:
    """Profiles that differ by a millionth, which is what printing them does to them."""
    gpu = GPU_KINDS[kind]
    demand, known = question(7, 4, gpu, seed)
    plan, _ = fewest(Patterns(), demand, gpu, 32, known)
    random = np.random.default_rng(seed)
    for _ in range(2):
        shaken = {name: _shaken(one, random) for name, one in known.items()}
        again, _ = fewest(Patterns(), demand, gpu, 32, shaken)
        assert used(again) == used(plan)


def _shaken(one: Profile, random: np.random.Generator) -> Profile:
    points = {}
    for key, point in one.points.items():
        ms = point.p95_ms * (1.0 + 1e-6 * float(random.uniform(-1.0, 1.0)))
        points[key] = LatencyPoint(ms, ms, ms, point.samples)
    return replace(one, points=points)


def test_a_frugal_packer_is_asked_once() -> None:
    asked: list[int] = []

    class Counted(Patterns):
        def __call__(self, demand, fleet: Fleet, profiles, current) -> Plan:  # type: ignore[no-untyped-def]
            asked.append(len(fleet.gpus))
            return super().__call__(demand, fleet, profiles, current)

    plan, fleet = fewest(Counted(), demand_of(res=900.0, be=900.0), GPU, 9, PROFILES)
    assert asked == [9] and len(fleet.gpus) == used(plan) and not plan.unserved_rows_per_s
