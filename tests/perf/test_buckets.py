"""Few graphs, little padding: laws of the choice of batch sizes."""

from itertools import accumulate, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.perf.buckets import BUCKETS_MAX, WASTE_MAX, bucket_for, choose_buckets
from tests.perf.padding import padding_waste

steps = st.lists(st.floats(0.0, 5.0), min_size=0, max_size=40)


@st.composite
def profiles(draw: st.DrawFn, most: int = 40) -> dict[int, float]:
    """Latencies at every batch size, never falling."""
    grown = draw(steps)[: most - 1]
    first = draw(st.floats(0.1, 10.0))
    return dict(enumerate(accumulate(grown, initial=first), 1))


@given(profiles())
def test_every_batch_has_a_graph_and_waste_is_bounded(profile: dict[int, float]) -> None:
    most = len(profile)
    buckets = choose_buckets(most, profile)
    assert buckets[-1] == most
    assert list(buckets) == sorted(set(buckets))
    assert len(buckets) <= BUCKETS_MAX
    for rows in range(1, most + 1):
        place = bucket_for(buckets, rows)
        assert place is not None
        assert buckets[place] >= rows
        assert place == 0 or buckets[place - 1] < rows
    if len(buckets) < BUCKETS_MAX:
        assert padding_waste(buckets, profile) <= WASTE_MAX + 1e-9


@settings(max_examples=60)
@given(profiles(most=9), st.integers(1, 4))
def test_no_choice_of_as_few_graphs_wastes_less(profile: dict[int, float], most: int) -> None:
    rows = len(profile)
    found = choose_buckets(rows, profile, most=most)
    others = [
        (*chosen, rows)
        for count in range(min(most, rows))
        for chosen in combinations(range(1, rows), count)
    ]
    least = min(padding_waste(other, profile) for other in others)
    assert padding_waste(found, profile) <= max(WASTE_MAX, least * (1 + 1e-4)) + 1e-9
    if padding_waste(found, profile) <= WASTE_MAX:  # and none of fewer graphs is good enough
        fewer = [other for other in others if len(other) < len(found)]
        assert all(padding_waste(other, profile) > WASTE_MAX for other in fewer)


def test_a_flat_profile_needs_one_graph() -> None:
    assert choose_buckets(32, {1: 2.0, 32: 2.1}) == (32,)


def test_without_a_profile_time_grows_with_rows() -> None:
    assert choose_buckets(4) == (1, 2, 3, 4)
    large = choose_buckets(65_536)
    assert len(large) <= BUCKETS_MAX
    assert large[-1] == 65_536


@pytest.mark.parametrize("rows", [1, 7, 8])
def test_points_between_measured_ones_are_guessed(rows: int) -> None:
    buckets = choose_buckets(8, {1: 1.0, 8: 8.0}, waste=0.0)
    assert buckets[bucket_for(buckets, rows) or 0] == rows


def test_too_many_rows_have_no_bucket() -> None:
    assert bucket_for((1, 4), 5) is None
