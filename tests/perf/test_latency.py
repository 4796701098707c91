"""Latency surfaces: interpolation, batches under a limit, throughput."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.latency import Surface, doubtful, doubts, surface

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


@given(curves, st.floats(0.1, 500.0))
def test_largest_batch_is_the_largest(curve: tuple[tuple[int, float], ...], limit: float) -> None:
    known = Surface({100: curve})
    best = known.largest_batch(limit, 100, 64)
    assert best == 0 or known.latency_ms(best, 100) <= limit
    assert best == 64 or known.latency_ms(best + 1, 100) > limit


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


#: A ViT of 0.9 ms on one core whose two threads stalled while the host was busy.
_STALLED = _profile({(1, 50): 0.9, (8, 50): 1.4, (1, 100): 146.0, (8, 100): 159.0, (16, 100): 3.8})


def test_points_that_a_busy_machine_made_slow_are_taken_for_what_smaller_shares_need() -> None:
    known = surface(_STALLED, "median_ms")
    assert known.latency_ms(1, 50) == known.latency_ms(1, 100) == 0.9
    assert known.latency_ms(8, 100) == 1.4 and known.latency_ms(16, 100) == 3.8
    assert doubtful(_STALLED.points) == {(1, 100): 0.9, (8, 100): 1.4}
    said = doubts("vit", _STALLED)
    assert said.startswith("vit: batch 1 at 100 %, batch 8 at 100 % took far longer than")


def test_noise_is_no_doubt() -> None:
    noisy = _profile({(1, 50): 2.0, (2, 50): 1.6, (1, 100): 2.8, (2, 100): 2.4})
    assert not doubtful(noisy.points) and doubts("m", noisy) == ""
    assert surface(noisy, "median_ms").latency_ms(1, 50) == 2.8


@given(st.dictionaries(st.tuples(st.integers(1, 9), st.integers(1, 9)), st.floats(0.1, 99.0)))
def test_the_hardest_point_and_the_shortest_one_are_never_in_doubt(
    points: dict[tuple[int, int], float],
) -> None:
    known = _profile(points).points
    found = doubtful(known)
    if points:
        assert min(points, key=points.__getitem__) not in found
        least = min(share for _, share in points)
        assert (max(batch for batch, share in points if share == least), least) not in found
        for batch, share in found:
            harder = (key for key in points if key[0] >= batch and key[1] <= share)
            assert any(2.0 * known[key].median_ms < known[batch, share].median_ms for key in harder)
