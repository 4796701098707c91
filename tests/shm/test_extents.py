"""Runs of bytes: none overlaps another, and what is given back is there again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.shm.extents import Extents, rounded

SIZE = 1000


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=60),
    st.sampled_from([1, 8, 64]),
    st.sampled_from([1, 7, 50]),
)
def test_runs_never_overlap_and_all_come_back(
    steps: list[tuple[bool, int]], alignment: int, granule: int
) -> None:
    extents = Extents(SIZE, granule)
    size = extents.size_bytes
    assert SIZE - granule < size <= SIZE
    held: list[tuple[int, int]] = []
    for take, number in steps:
        if take:
            offset, nbytes = extents.take(number, alignment), rounded(number, granule)
            if offset is not None:
                assert offset % alignment == 0
                assert 0 <= offset <= size - nbytes
                assert all(offset >= b + n or offset + nbytes <= b for b, n in held)
                held.append((offset, nbytes))
        elif held:
            extents.give_back(held.pop(number % len(held))[0])
        assert extents.free_bytes == size - sum(nbytes for _, nbytes in held)
    for offset, _ in held:
        extents.give_back(offset)
    assert extents.empty and extents.take(size) == 0


def test_a_run_that_was_split_is_given_back_in_parts_each_once() -> None:
    extents = Extents(SIZE)
    assert extents.take(100) == 0
    assert extents.split(0, [20, 30, 50]) == [0, 20, 50]
    extents.give_back(20)
    for offset in (20, 10, 500):
        with pytest.raises(ValueError, match="given back twice, or was never taken"):
            extents.give_back(offset)
    for offset in (50, 0):
        extents.give_back(offset)
    assert extents.take(SIZE) == 0


def test_the_smallest_run_that_fits_is_taken() -> None:
    extents = Extents(SIZE)
    for nbytes in (300, 100, 200, 100, 300):
        extents.take(nbytes)
    extents.give_back(0)
    extents.give_back(400)
    assert extents.take(150) == 400
