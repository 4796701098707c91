"""D-STACK's figures in reduced form: who wins, and by about what factor."""

import pytest

from bench.papers.dstack import figure11, figures
from bench.papers.dstack.trial import (
    at_knees,
    every_time_16,
    of_table_6,
    parted,
    run,
)
from bench.papers.dstack.v100 import BATCH, TABLE_6, profiles
from interlace.perf.latency import surface
from interlace.perf.sizing import knee_pct
from tests.bench.conftest import Drawn


@pytest.mark.parametrize("model", sorted(TABLE_6))
def test_profiles_have_table_6_and_its_knees(model: str) -> None:
    printed, known = TABLE_6[model], surface(profiles()[model])
    assert known.latency_ms(BATCH, printed.knee_pct) == pytest.approx(printed.run_ms)
    assert known.latency_ms(BATCH, 100) == pytest.approx(printed.run_ms)
    faster = surface(profiles(gain=0.3)[model])
    assert faster.latency_ms(BATCH, 100) == pytest.approx(0.7 * printed.run_ms)
    assert knee_pct(known, BATCH) == printed.knee_pct
    assert knee_pct(surface(profiles(steep=0.0)[model]), BATCH) == printed.knee_pct
    assert 0.2 < known.latency_ms(1, printed.knee_pct) / printed.run_ms < 0.3


def test_no_batch_uses_the_gpu_better_than_16_rows_at_the_knee() -> None:
    for model, known in profiles(steep=0.0).items():
        printed = TABLE_6[model]
        row = printed.knee_pct * printed.run_ms / BATCH
        for (batch, share), point in known.points.items():
            assert point.median_ms * share / batch >= row * (1 - 1e-9)


def test_gslice_has_a_part_for_everyone() -> None:
    case = of_table_6(figure11.CASES["C-7"], profiles())
    parts = parted(case).partitions
    assert sorted(p.slots[0].model for p in parts) == sorted(case.rates_rps)
    assert sum(p.share_pct for p in parts) == 100
    assert sum(p.share_pct for p in at_knees(case).partitions) == 260  # what a session may overlap


def test_a_full_session_without_fill_is_in_time() -> None:
    """C-2 at the paper's rates: batches are due before they would be full too late."""
    case = of_table_6({"resnet50": 320.0, "vgg19": 160.0}, profiles())
    assert run("dstack-plain", case, 2.0).missed_of_all == 0.0


def test_table_1(drawn: Drawn) -> None:
    rows = drawn(figures.table1(images=160)).rows
    ratios = {row.what: row.ratio for row in rows}
    assert ratios["triton"] == pytest.approx(1.0, abs=0.15)
    assert ratios["dstack"] == pytest.approx(1.0, abs=0.2)


def test_figure_9(drawn: Drawn) -> None:
    ours = drawn(figures.figure9(seconds=1.5)).ours
    assert ours["9a: temporal, use"] < ours["9b: dstack-plain, use"] < ours["9c: dstack, use"]
    assert ours["9b: dstack-plain, use"] == pytest.approx(60.0, abs=6.0)


def test_figure_10(drawn: Drawn) -> None:
    ours = drawn(figures.figure10(seconds=2.0)).ours
    assert ours["10a: dstack / temporal, alexnet"] > 2.5
    assert ours["10a: dstack / temporal, vgg19"] > 1.5
    assert ours["10a: dstack / max-throughput, alexnet (more than)"] > 0.8
    assert ours["10b: max-min's mobilenet runs longer than dstack's, by"] > 0.0
    assert ours["10b: dstack, Jain's index of GPU time"] > 0.95


def test_figure_11(drawn: Drawn) -> None:
    few = tuple(
        name for name in figure11.SYSTEMS if name != "interlace"
    )  # its planner takes seconds
    report = figure11.figure11(
        seconds=1.0, cases=("C-2", "C-7"), systems=few, session_s=0.5, steep=()
    )
    ours = drawn(report).ours
    assert ours["11a C-2: D-STACK, missed"] < 1.0
    assert ours["11a C-7: D-STACK, missed"] < 13.0
    for name in ("FB", "T", "Tri", "G"):
        assert ours[f"11a C-7: {name}, missed"] > 55.0
    assert ours["11a C-7: D-STACK, use"] == pytest.approx(92.0, abs=4.0)
    assert all(ours[f"11b T{index}: use"] > 80.0 for index in range(5))


def test_batches_of_16_every_time_are_late_without_any_slowdown() -> None:
    """What section 7 says of FB: VGG-19's 16 at 160/s take its whole SLO to come together."""
    case = of_table_6({"resnet50": 320.0, "vgg19": 160.0}, profiles(steep=0.0))
    found = every_time_16(case, 2.0)
    assert found.missed_of_all > 0.3
    assert found.answered_rps > 0.9 * sum(case.rates_rps.values())
    assert run("fixed", case, 2.0).missed_of_all < 0.01  # with a timeout it is not


def test_gslice_in_c7_depends_on_what_was_fitted() -> None:
    """The page says that GSLICE's misses are a fit: 9 % by the logs' law, 79 % by the fitted."""
    plain, fitted = (figure11.served("G", "C-7", 2.0, s).missed_of_all for s in (0.0, 1.0))
    assert plain < 0.2
    assert fitted > 0.6


def test_figure_12(drawn: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "SCHEMES", ("exclusive", "temporal", "dstack"))
    ours = drawn(figures.figure12(seconds=1.0)).ours
    assert ours["dstack / temporal"] > 2.6
    assert ours["dstack: missed"] < 5.0
