"""When more or less is asked for: gpulet's thresholds, and hysteresis of ours."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.plan import Partition, Plan
from interlace.policy.scaling import Algorithm2, FixedFleet, GrowAndShrink

FLEET = uniform_fleet(GPU_KINDS["2080ti"], 3)


@pytest.mark.parametrize(
    ("seen", "planned", "moved"),
    [
        *((100.0, 150.0, 0), (106.0, 150.0, 1), (89.0, 150.0, -1), (91.0, 150.0, 0)),
        *((500.0, 591.0, 0), (508.0, 599.0, 1), (200.0, 240.0, 0), (124.0, 186.0, 0)),
    ],
)
def test_gpulet_acts_on_its_released_thresholds(seen: float, planned: float, moved: int) -> None:
    """Planned x1.5 below 125 rows/s and x1.2 above; +5 %, +10 rows/s or -10 % of the target."""
    assert Algorithm2().moved(seen, planned) == moved


@given(seen=st.floats(0.1, 1e5))
def test_what_was_planned_for_a_rate_asks_for_nothing_at_that_rate(seen: float) -> None:
    for scaler in (FixedFleet(), Algorithm2(), GrowAndShrink()):
        assert scaler.moved(seen, scaler.target_rows_per_s(seen)) == 0


@given(planned=st.floats(0.1, 1e5), low=st.floats(0.0, 1e5), more=st.floats(0.0, 1e5))
def test_a_higher_rate_never_asks_for_less(planned: float, low: float, more: float) -> None:
    for scaler in (FixedFleet(), Algorithm2(), GrowAndShrink()):
        assert scaler.moved(low, planned) <= scaler.moved(low + more, planned)


def test_a_steady_poisson_rate_rarely_asks_for_another_plan() -> None:
    random, scaler = np.random.default_rng(1), GrowAndShrink()
    asked = total = 0
    for rate in (2.0, 20.0, 200.0, 2_000.0):
        smoothed, planned = rate, scaler.target_rows_per_s(rate)
        for count in random.poisson(rate, 2_000):
            smoothed += scaler.weight * (count - smoothed)
            asked += scaler.moved(smoothed, planned) != 0
            total += 1
    assert asked / total < 0.01


def test_used_accelerators_are_wanted_and_one_more_for_what_is_unserved() -> None:
    parts = tuple(Partition(gpu, gpu, 50) for gpu in ("gpu0", "gpu2"))
    for scaler in (Algorithm2(), GrowAndShrink()):
        assert scaler(Plan(parts), FLEET) == {"2080ti": 2}
        assert scaler(Plan(parts, {"m": 1.0}), FLEET) == {"2080ti": 3}
    assert FixedFleet()(Plan(parts), FLEET) == {"2080ti": 3}
