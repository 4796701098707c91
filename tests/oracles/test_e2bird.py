"""E2bird: equation 1, equation 6, Table 4, and N-Ebird's list."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.e2bird.figures import hidden_part, throughput_gain
from interlace.perf.worker_sizes import Configuration, configurations, engine, naive, search

#: Table 4: the fastest configuration of Res152 for each load, and the engine's.
TABLE_4 = {
    4: (0, 0, 1, 0, 0, 0),
    8: (0, 0, 0, 1, 0, 0),
    16: (0, 0, 2, 1, 0, 0),
    32: (0, 0, 0, 2, 1, 0),
}
ENGINE = (1, 1, 1, 2, 1, 0)


def rows(configuration: Sequence[int]) -> int:
    """TotalBS of equation 6: rows in flight when all workers run."""
    return sum(count << power for power, count in enumerate(configuration))


def test_table_4_rows_add_up_to_their_loads() -> None:
    assert all(rows(one) == total for total, one in TABLE_4.items())


def test_table_4_engine_has_one_worker_of_four_too_few_for_its_own_rows() -> None:
    # The row for 16 wants two workers of 4; the printed engine has one. Without that row the
    # printed engine is the smallest that satisfies the others.
    assert engine(TABLE_4.values()) == (1, 1, 2, 2, 1, 0)
    assert engine(one for total, one in TABLE_4.items() if total != 16) == ENGINE


def test_the_offline_search_finds_table_4_where_it_was_the_fastest() -> None:
    # Figure 12: 85.3 ms for two of 8 and one of 16, 93.7 ms for one of 32, four times for ones.
    def measure(one: Configuration) -> float:
        return 85.3 if one in TABLE_4.values() else 93.7 + sum(one)

    guide = search(measure)
    assert dict(guide.best) == TABLE_4
    assert guide.engine == (1, 1, 2, 2, 1, 0)


def test_equation_6_has_every_case_once() -> None:
    found = list(configurations(32))
    assert len(found) == len(set(found)) == 202  # binary partitions of 32 into parts up to 32
    assert all(rows(one) == 32 for one in found)


def test_the_search_leaves_out_what_the_published_one_does() -> None:
    tried: list[Configuration] = []

    def measure(one: Configuration) -> float:
        tried.append(one)
        return float(sum(one))

    search(measure, totals=(32,))
    assert set(configurations(32)) - set(tried) == {(30, 1, 0, 0, 0, 0), (32, 0, 0, 0, 0, 0)}
    assert search(measure, totals=(32,), sizes=1).engine == (32,)  # there is nothing else
    with pytest.raises(ValueError, match="a load of 0 rows"):
        search(measure, totals=(0,))


@given(st.integers(0, 40), st.integers(1, 6))
def test_configurations_add_up(total: int, sizes: int) -> None:
    assert all(rows(one) == total and len(one) == sizes for one in configurations(total, sizes))


def test_the_list_of_n_ebird() -> None:
    assert naive(32) == (1, 1, 2, 4, 8, 16)
    assert naive(1) == (1,)


@given(st.integers(1, 70))
def test_every_load_up_to_the_largest_can_be_made(most: int) -> None:
    made = {0}
    for size in naive(most):
        made |= {size + one for one in made}
    assert made == set(range(most + 1))


@given(st.floats(0.0, 100.0), st.floats(0.001, 100.0))
def test_equation_1_bounds_the_gain(transfer_ms: float, compute_ms: float) -> None:
    part = hidden_part(transfer_ms, compute_ms)
    assert part == pytest.approx(1.0 / (1.0 + compute_ms / transfer_ms) if transfer_ms else 0.0)
    assert 1.0 <= throughput_gain(transfer_ms, compute_ms) <= 2.0 + 1e-12


def test_equation_1_by_hand() -> None:
    assert hidden_part(2.0, 8.0) == pytest.approx(0.2)
    assert throughput_gain(2.0, 8.0) == pytest.approx(1.25)
    with pytest.raises(ValueError, match="not both 0"):
        hidden_part(0.0, 0.0)
    with pytest.raises(ValueError, match="at least 1"):
        naive(0)
