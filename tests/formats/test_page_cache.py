"""In which order a file is read ahead."""

from hypothesis import given
from hypothesis import strategies as st

from interlace.formats.page_cache import LARGE_PAGE_BYTES, _pieces

_SIZE = 40 * LARGE_PAGE_BYTES


@given(st.integers(1, _SIZE), st.lists(st.integers(0, _SIZE), max_size=6))
def test_all_of_a_file_is_read_and_tables_last(size: int, ends: list[int]) -> None:
    sorted_ends = sorted(end % size for end in ends[: len(ends) // 2 * 2])
    tables = [
        (begin, end - begin) for begin, end in zip(sorted_ends[::2], sorted_ends[1::2], strict=True)
    ]
    pieces = list(_pieces(size, tables))
    assert all(begin % LARGE_PAGE_BYTES == 0 for begin, _ in pieces)
    covered = sorted(pieces)
    assert covered[0][0] == 0
    assert [begin + nbytes for begin, nbytes in covered] == [*(b for b, _ in covered[1:]), size]
    within = [any(b <= at and at + n <= b + k for b, k in tables) for at, n in pieces]
    assert within == sorted(within), "what is of no table comes first"


def test_a_table_that_execution_reads_by_rows_comes_last() -> None:
    mb = LARGE_PAGE_BYTES
    assert list(_pieces(5 * mb, [(100, 3 * mb)])) == [(0, mb), (3 * mb, 2 * mb), (mb, 2 * mb)]
