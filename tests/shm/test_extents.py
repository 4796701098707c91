"""Runs of bytes: none overlaps another, and what is given back is there again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.shm.extents import Extents

SIZE = 1000


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=60),
    st.sampled_from([1, 8, 64]),
)
def test_runs_never_overlap_and_all_come_back(
    steps: list[tuple[bool, int]], alignment: int
) -> None:
    extents = Extents(SIZE)
    held: list[tuple[int, int]] = []
    for take, number in steps:
        if take:
            offset = extents.take(number, alignment if number % 2 else 1)
            if offset is not None:
                assert offset % (alignment if number % 2 else 1) == 0
                assert 0 <= offset <= SIZE - number
                assert all(offset >= b + n or offset + number <= b for b, n in held)
                held.append((offset, number))
        elif held:
            extents.give(*held.pop(number % len(held)))
        assert extents.free_bytes == SIZE - sum(nbytes for _, nbytes in held)
    for one in held:
        extents.give(*one)
    assert extents.take(SIZE) == 0


def test_what_is_free_cannot_be_given_back() -> None:
    extents = Extents(SIZE)
    assert extents.take(100) == 0
    extents.give(50, 50)
    for offset, nbytes in ((50, 50), (40, 20), (90, 20), (500, 10)):
        with pytest.raises(ValueError, match="not given out"):
            extents.give(offset, nbytes)
    extents.give(0, 50)
    assert extents.take(SIZE) == 0


def test_the_smallest_run_that_fits_is_taken() -> None:
    extents = Extents(SIZE)
    for nbytes in (300, 100, 200, 100, 300):
        extents.take(nbytes)
    extents.give(0, 300)
    extents.give(400, 200)
    assert extents.take(150) == 400
    assert extents.take(0) is None
