"""Latency surfaces over batch and share: what they promise between and beyond measurements."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.latency import Surface, doubtful, surface

SHARES = (10, 25, 50, 80, 100)
BATCHES = (1, 2, 4, 8, 16)

measured = st.dictionaries(
    st.tuples(st.sampled_from(BATCHES), st.sampled_from(SHARES)),
    st.floats(0.1, 100.0),
    min_size=1,
    max_size=20,
)


def _surface(points: dict[tuple[int, int], float]) -> Surface:
    kept = {key: LatencyPoint(ms, ms, ms, 5) for key, ms in points.items()}
    return surface(Profile("m", "d", "k", 1, 1, kept))


@given(measured)
def test_more_rows_and_smaller_shares_are_never_faster(
    points: dict[tuple[int, int], float],
) -> None:
    known = _surface(points)
    shares = [s for s in (*SHARES, 30, 66) if s >= known.shares_pct[0]]
    for share in shares:
        assert all(a <= b for a, b in itertools.pairwise(known.table(share, 40)))
    for small, large in itertools.pairwise(sorted(shares)):
        for batch in (1, 2, 3, 7, 16, 17, 40):
            slow, fast = known.latency_ms(batch, small), known.latency_ms(batch, large)
            assert fast <= slow * (1 + 1e-9)


@given(measured)
def test_no_measured_point_is_promised_faster_than_it_was(
    points: dict[tuple[int, int], float],
) -> None:
    known = _surface(points)
    in_doubt = doubtful({key: LatencyPoint(ms, ms, ms, 9) for key, ms in points.items()})
    for (batch, share), ms in points.items():
        assert known.latency_ms(batch, share) >= in_doubt.get((batch, share), ms)


@given(measured)
def test_no_batch_is_known_to_run_that_ran_at_larger_shares_alone(
    points: dict[tuple[int, int], float],
) -> None:
    known = _surface(points)
    for share in known.shares_pct:
        ran = max(batch for batch, other in points if other <= share)
        assert known.measured_rows(share) == ran


@given(measured)
def test_no_throughput_is_promised_beyond_the_batches_that_were_measured(
    points: dict[tuple[int, int], float],
) -> None:
    known = _surface(points)
    last = max(batch for batch, _ in points)
    for share in known.shares_pct:
        seen = known.throughput_rows_per_s(last, share)
        assert all(
            known.throughput_rows_per_s(b, share) <= seen * (1 + 1e-9) for b in (last + 1, 50, 500)
        )


@given(measured)
def test_a_table_is_the_surface(points: dict[tuple[int, int], float]) -> None:
    known = _surface(points)
    share = known.shares_pct[-1]
    assert known.table(share, 20) == (0.0, *(known.latency_ms(b, share) for b in range(1, 21)))
    assert known.table(share, 0) == (0.0,)


def test_clean_measurements_are_kept_as_they_are() -> None:
    points = {(b, s): (2.0 + b) * 100 / s for b in BATCHES for s in SHARES}
    known = _surface(points)
    assert all(known.latency_ms(b, s) == ms for (b, s), ms in points.items())


def test_a_faster_larger_batch_does_not_make_a_smaller_one_faster() -> None:
    # Two rows could be padded to four only by an engine that pads, which this one does not.
    known = _surface({(1, 100): 4.0, (2, 100): 9.0, (4, 100): 6.0})
    assert known.table(100, 4) == (0.0, 4.0, 9.0, 9.0, 9.0)


def test_a_smaller_share_that_looked_faster_is_raised() -> None:
    known = _surface({(1, 50): 3.0, (1, 100): 4.0})
    assert known.latency_ms(1, 50) == 4.0


def test_a_large_share_measured_at_one_batch_learns_from_smaller_ones() -> None:
    known = _surface({(1, 100): 5.0, (1, 50): 6.0, (32, 50): 20.0})
    assert known.latency_ms(32, 100) == 20.0
    assert known.latency_ms(32, 50) == 20.0


def test_beyond_the_largest_batch_the_last_step_goes_on_if_it_is_steeper() -> None:
    known = _surface({(1, 100): 1.0, (2, 100): 5.0})
    assert known.latency_ms(4, 100) == pytest.approx(13.0)
    flat = _surface({(1, 100): 4.0, (2, 100): 4.0})
    assert flat.latency_ms(4, 100) == pytest.approx(8.0)


def test_no_points_have_no_surface() -> None:
    with pytest.raises(ValueError, match="no measured points"):
        _surface({})
