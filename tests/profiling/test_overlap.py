"""Laws of shared time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.profiling.corun import (
    Interval,
    common,
    inside,
    merged,
    overlap,
    together,
    total_ms,
)

#: Whole ms, so that lengths are counted by counting cells.
times = st.integers(0, 60)
intervals = st.lists(
    st.tuples(times, st.integers(0, 12)).map(lambda pair: Interval(pair[0], pair[0] + pair[1])),
    max_size=8,
)
runs = intervals.filter(bool)


def cells(some: list[Interval]) -> set[int]:
    return {cell for one in some for cell in range(int(one.began_ms), int(one.ended_ms))}


@given(intervals)
def test_merged_is_the_same_time_in_pieces_that_do_not_touch(some: list[Interval]) -> None:
    found = merged(some)
    assert cells(found) == cells(some)
    assert total_ms(some) == len(cells(some))
    assert all(a.ended_ms < b.began_ms for a, b in pairwise(found))


@given(intervals, intervals)
def test_common_time_lies_in_both(some: list[Interval], others: list[Interval]) -> None:
    assert cells(common(some, others)) == cells(some) & cells(others)


@given(intervals, st.lists(intervals, max_size=3))
def test_overlap_is_the_counted_part(own: list[Interval], others: list[list[Interval]]) -> None:
    found = overlap(own, others)
    assert 0.0 <= found <= 1.0
    mine = cells(own)
    shared = mine.intersection(*(cells(one) for one in others))
    assert found == pytest.approx(len(shared) / len(mine) if mine else 0.0)


@given(runs, st.lists(intervals, max_size=2), intervals)
def test_one_more_neighbour_never_adds_overlap(
    own: list[Interval], others: list[list[Interval]], one: list[Interval]
) -> None:
    assert overlap(own, [*others, one]) <= overlap(own, others) + 1e-12


@given(st.lists(runs, min_size=1, max_size=3))
def test_all_had_begun_and_none_had_ended_in_the_window(some: list[list[Interval]]) -> None:
    ordered = [sorted(run, key=lambda one: one.ended_ms) for run in some]
    window = together(ordered)
    if window is None:
        return
    for run in ordered:
        assert run[0].began_ms <= window.began_ms < window.ended_ms <= run[-1].ended_ms
        for one in inside(run, window):
            assert window.began_ms <= one.began_ms <= one.ended_ms <= window.ended_ms


def test_who_never_ran_has_no_company() -> None:
    assert together([[Interval(0, 1)], []]) is None
    assert together([]) is None
    assert overlap([], [[Interval(0, 1)]]) == 0.0
