"""gpulet's figures in reduced form: the shapes that its text states."""

import numpy as np
import pytest

from bench.papers.gpulet import figure14, figures
from bench.papers.gpulet.trial import LAW, overheads, pairs, planned_rps
from tests.bench.conftest import Drawn


def test_figure_4_halves_serve_most_of_what_whole_gpus_cannot(drawn: Drawn) -> None:
    ours = drawn(figures.figure4(sample=120)).ours
    assert ours["rates x2, of 120: of the rest, halves serve"] > 50.0
    assert ours["rates x2, of 120: whole GPUs"] < ours["rates x2, of 120: two halves"]


def test_figure_5_cuts_beat_turns_and_the_best_cut_beats_best_fit(drawn: Drawn) -> None:
    ours = drawn(figures.figure5()).ours
    assert ours["best-fit / temporal, mean"] > 1.2
    assert 1.05 < ours["static ideal / best-fit, mean"] < 1.4


def test_figure_6_the_law_has_the_papers_90th_percentile_and_a_long_tail() -> None:
    assert len(pairs()) == 2 * 250 * 5
    values = overheads(LAW)
    assert np.quantile(values, 0.9) == pytest.approx(0.18)
    assert values[-1] > 0.3


def test_rates_are_planned_at_the_99th_percentile_of_a_second() -> None:
    """The released code plans 125 for 100 requests/s, and a tenth more above 550."""
    assert planned_rps(100.0) == pytest.approx(125.0)
    assert planned_rps(600.0) == pytest.approx(660.0)
    assert all(planned_rps(rate) > rate for rate in (0.1, 1.0, 10.0, 300.0, 549.0))


def test_figure_12_gpulet_beats_bin_packing_and_best_fit(drawn: Drawn) -> None:
    ours = drawn(figures.figure12(seconds=2.0, names=("scen1", "scen5"))).ours
    assert ours["gpulet+int / SBP, mean"] > 1.1
    assert ours["scen1: gpulet+int"] > ours["scen1: greedy best-fit"]


def test_figure_13_only_schedules_that_know_of_interference_hold(drawn: Drawn) -> None:
    ours = drawn(figures.figure13(seconds=3.0, names=("scen2", "scen4"))).ours
    assert ours["gpulet: mixes above 1 %"] == 1
    assert ours["gpulet+int: mixes above 1 %"] == 0


def test_figure_14_partitions_follow_the_rates_and_no_model_is_missing(drawn: Drawn) -> None:
    ours = drawn(figure14.figure14(rate=0.6, time=0.05)).ours
    assert ours["gpulet: GPUs, most"] > ours["gpulet: GPUs, least"]
    assert ours["gpulet: times without a host"] == 0
    assert ours["gpulet: changes of plan"] >= 3


def test_figure_15_the_ideal_serves_what_gpulet_serves_and_more(drawn: Drawn) -> None:
    ours = drawn(figures.figure15(sample=12)).ours
    for load in ("1", "1.5", "2"):
        name = f"rates x{load}, of 12"
        assert ours[f"{name}: gpulet+int"] <= ours[f"{name}: ideal"]


def test_figure_16_gpulet_comes_near_the_ideal(drawn: Drawn) -> None:
    ours = drawn(figures.figure16(names=("scen2",), exactly=1.2)).ours
    assert 60.0 < ours["gpulet+int / ideal, mean"] <= 100.0
