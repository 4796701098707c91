"""E2bird's figures again: every command runs, and what it shows is what the paper states."""

from collections.abc import Sequence

import pytest

from bench.harness import Row
from bench.papers.e2bird import figures, memory
from bench.papers.e2bird.memory import NETWORKS, graph
from bench.papers.e2bird.titan import TABLE_4
from tests.bench.conftest import Drawn


def _value(rows: Sequence[Row], what: str) -> float:
    (row,) = [row for row in rows if row.what == what]
    return row.ours


def test_table_1_is_simulated_as_printed(drawn: Drawn) -> None:
    rows = drawn(figures.table1()).rows
    assert all(row.ratio is not None and abs(row.ratio - 1) < 0.01 for row in rows)
    assert len(rows) == 12


def test_figure_2_holds_with_many_batch_threads_and_not_with_one(drawn: Drawn) -> None:
    rows = drawn(figures.figure2()).rows
    stated = [row for row in rows if row.published is not None]
    assert [row.ours for row in stated[:5]] == [1.0] * 5
    assert 0.0 in [row.ours for row in stated[5:]]


def test_figure_7_splitting_costs_little(drawn: Drawn) -> None:
    rows = drawn(figures.figure7(pictures=16)).rows
    assert _value(rows, "computing: 64 workers over one") == pytest.approx(1.0)
    assert _value(rows, "copying: a picture of its own costs at most") < 0.1


def test_figure_12_the_published_configuration_is_the_fastest(drawn: Drawn) -> None:
    rows = drawn(figures.figure12()).rows
    assert figures.tried()[0][1] == TABLE_4[32]
    assert all(abs(row.ratio - 1) < 0.01 for row in rows if row.ratio is not None)


def test_table_4_is_found(drawn: Drawn) -> None:
    rows = drawn(memory.table4()).rows
    assert dict(memory.guideline("res152").best) == TABLE_4
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


def test_figure_17_memory_is_saved(drawn: Drawn) -> None:
    rows = drawn(memory.figure17()).rows
    assert _value(rows, "NM-Ebird over TF-Serving, mean") > 0
    assert _value(rows, "E2bird under TF-Serving, mean") > 50.0


def test_the_networks_have_the_published_numbers_of_weights() -> None:
    millions = {name: graph(name).weights / 1e6 for name in NETWORKS}
    published = {"res50": 25.6, "res101": 44.7, "res152": 60.3, "vgg16": 138.4, "vgg19": 143.7}
    assert millions == pytest.approx(published, rel=0.003)


def test_memory_that_is_reused_holds_the_largest_pair_and_no_more_than_all() -> None:
    for name in NETWORKS:
        made = graph(name)
        largest = max(
            size + max((made.sizes[one] for one in inputs), default=0)
            for size, inputs in zip(made.sizes, made.reads, strict=True)
        )
        assert largest <= made.reused() <= made.everything()
