"""The primitives paper's figures again: every command runs, and shows what is written of it."""

from collections.abc import Sequence

import pytest

from bench.harness import Row
from bench.papers.primitives import figures, recognition
from bench.papers.primitives.running import FirstCome, time_sliced
from bench.papers.primitives.v100 import MODELS, at, logs, profile, t4
from interlace.device.simulated.physics import RunningBatch
from interlace.perf.latency import surface
from tests.bench.conftest import Drawn


def _value(rows: Sequence[Row], what: str) -> float:
    (row,) = [row for row in rows if row.what == what]
    return row.ours


def test_figure_1_all_statements_hold(drawn: Drawn) -> None:
    rows = drawn(figures.figure1()).rows
    stated = [row for row in rows if row.published is not None]
    assert len(stated) == 9
    assert all(row.ours == 1.0 for row in stated), [row.what for row in stated if not row.ours]


def test_figure_9_instances_gain_until_latency_does_not_bear_it(drawn: Drawn) -> None:
    rows = drawn(figures.figure9(seconds=1.0)).rows
    assert _value(rows, "1 row: 4 instances over 1, throughput (more than)") > 2.0
    assert _value(rows, "1 row: 4 instances over 1, p99") == pytest.approx(1.25, rel=0.1)
    assert _value(rows, "8 rows: 5 instances over 1, throughput") == pytest.approx(1.5, rel=0.2)
    assert _value(rows, "8 rows: p99 of 5 instances (below)") < 50.0
    assert _value(rows, "8 rows: 10 instances over 5, throughput") == pytest.approx(1.0, rel=0.1)
    assert _value(rows, "8 rows: 10 instances over 5, p99") > 1.5


def test_table_3_side_by_side_serves_more_in_time(drawn: Drawn) -> None:
    rows = drawn(recognition.table3(rounds=60)).rows
    assert _value(rows, "PyTorch: DNN-Recog over temporal") >= 4.0
    assert _value(rows, "PyTorch: all over temporal") >= 3.0
    assert _value(rows, "TensorRT logs: all over temporal") > 2.0
    for row in rows:  # what was planned for a round is what the engine answers in it
        if row.what.endswith("rows a round"):
            answered = _value(rows, row.what.replace("rows a round", "in time"))
            assert answered * 0.030 == pytest.approx(row.ours, rel=0.02), row.what


def test_table_4_light_models_gain_by_instances(drawn: Drawn) -> None:
    rows = drawn(figures.table4(seconds=0.7)).rows
    assert _value(rows, "PyTorch, mobilenet: 4 x 25 % over 1 x 100 %") > 1.9
    assert _value(rows, "PyTorch, alexnet: 4 x 25 % over 1 x 100 %") > 1.5
    assert _value(rows, "PyTorch, vgg19: 2 x 50 % over 1 x 100 %") < 1.2
    for model in MODELS:
        assert _value(rows, f"PyTorch, {model}: the same gain, one row a batch") >= 1.9


def test_the_logs_are_read_as_they_are() -> None:
    assert len(logs()) == 24
    assert surface(profile("resnet50"), "median_ms").latency_ms(16, 40) == 28.04
    assert surface(t4("resnet50"), "median_ms").latency_ms(16, 80) == 28.04
    assert at({10: 8.0, 20: 4.0}, 15) == 6.0
    assert at({10: 8.0, 20: 4.0}, 5) == 16.0


def test_ways_to_share_lose_no_time_and_make_none() -> None:
    """Speeds are of at most 1; together nobody gets more of the GPU than there is."""
    running = [RunningBatch(m, 4, 100, surface(profile(m), "median_ms")) for m in MODELS]
    assert time_sliced(running) == [0.25] * 4
    speeds = FirstCome()(running)
    assert all(0 < speed <= 1 for speed in speeds)
    fastest = max(zip(speeds, MODELS, strict=True))[1]
    assert fastest == "vgg19", "whoever has the longest kernels gets on best"
    small = [RunningBatch("mobilenet", 1, 100, surface(profile("mobilenet"), "median_ms"))] * 2
    assert FirstCome()(small) == [1.0, 1.0]
