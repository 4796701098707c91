"""Latency surfaces: interpolation, batches under a limit, throughput."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.latency import Surface, surface

curves = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=6).map(
    lambda steps: tuple((2**i, sum(steps[: i + 1])) for i in range(len(steps)))
)


def _profile(points: dict[tuple[int, int], float]) -> Profile:
    return Profile(
        "m", "d", "k", 1, 1, {k: LatencyPoint(v, v + 1, v + 2, 9) for k, v in points.items()}
    )


def test_measured_points_are_kept_and_between_them_is_a_line() -> None:
    line = surface(_profile({(1, 50): 2.0, (4, 50): 8.0}), "median_ms")
    assert line.latency_ms(1, 50) == 2.0
    assert line.latency_ms(4, 50) == 8.0
    assert line.latency_ms(2, 50) == pytest.approx(4.0)
    assert line.latency_ms(8, 50) == pytest.approx(16.0)


def test_quantiles_are_chosen() -> None:
    profile = _profile({(1, 100): 2.0})
    assert surface(profile, "p95_ms").latency_ms(1, 100) == 3.0
    assert surface(profile, "p99_ms").latency_ms(1, 100) == 4.0


def test_a_share_between_two_takes_the_smaller_ones_curve() -> None:
    known = surface(_profile({(1, 50): 4.0, (1, 100): 2.0}), "median_ms")
    assert known.latency_ms(1, 75) == 4.0
    with pytest.raises(ValueError, match="at or below a share of 25"):
        known.latency_ms(1, 25)


def test_noise_never_makes_a_larger_batch_faster() -> None:
    noisy = surface(_profile({(1, 100): 5.0, (2, 100): 3.0, (4, 100): 6.0}), "median_ms")
    assert noisy.latency_ms(2, 100) == 5.0


@given(curves, st.floats(0.1, 500.0))
def test_largest_batch_is_the_largest(curve: tuple[tuple[int, float], ...], limit: float) -> None:
    known = Surface({100: curve})
    best = known.largest_batch(limit, 100, 64)
    assert best == 0 or known.latency_ms(best, 100) <= limit
    assert best == 64 or known.latency_ms(best + 1, 100) > limit


@given(curves)
def test_latency_is_monotone_in_the_batch(curve: tuple[tuple[int, float], ...]) -> None:
    known = Surface({100: curve})
    values = [known.latency_ms(batch, 100) for batch in range(1, 80)]
    assert values == sorted(values)


@given(curves, st.floats(1.0, 500.0))
def test_a_larger_batch_than_the_best_gains_under_five_percent(
    curve: tuple[tuple[int, float], ...], limit: float
) -> None:
    known = Surface({100: curve})
    best = known.best_batch(limit, 100, 32)
    for batch in range(1, known.largest_batch(limit, 100, 32) + 1):
        ahead = known.throughput_rows_per_s(batch, 100) / known.throughput_rows_per_s(best, 100)
        assert ahead <= 1.05 + 1e-9
        assert batch >= best or ahead < 1.0
