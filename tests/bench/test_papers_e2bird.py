"""E2bird's figures again: every command runs, and what it shows is what the paper states."""

from collections.abc import Sequence

from bench.harness import Row
from bench.papers.e2bird import figures
from bench.papers.e2bird.titan import TABLE_4
from tests.bench.conftest import Drawn


def _value(rows: Sequence[Row], what: str) -> float:
    (row,) = [row for row in rows if row.what == what]
    return row.ours


def test_figure_2_holds_with_many_batch_threads_and_not_with_one(drawn: Drawn) -> None:
    rows = drawn(figures.figure2()).rows
    stated = [row for row in rows if row.published is not None]
    assert [row.ours for row in stated[:5]] == [1.0] * 5
    assert 0.0 in [row.ours for row in stated[5:]]


def test_table_4_is_found(drawn: Drawn) -> None:
    rows = drawn(figures.table4()).rows
    assert dict(figures.guideline("res152").best) == TABLE_4
    assert [row.ours for row in rows[:4]] == [1.0] * 4


def test_figure_13_latencies_fall(drawn: Drawn) -> None:
    rows = drawn(figures.figure13(models=("res152",))).rows
    assert 44.6 < _value(rows, "low load (60%), N-Ebird saves at least") < 70.9
    assert 7.4 < _value(rows, "high load, N-Ebird saves at most") < 53.1
    assert _value(rows, "high load, E-Ebird saves of N's at least") > 5.0


def test_figure_14_throughput_rises_from_one_to_the_next(drawn: Drawn) -> None:
    rows = drawn(figures.figure14(models=("res152",), count=1_500)).rows
    tf, naive, enhanced = (
        _value(rows, f"res152, {name}") for name in ("TF-Serving", "N-Ebird", "E-Ebird")
    )
    assert tf * 1.2 < naive < enhanced
