"""A cold start on cores, in reduced form: every way gives a time, and its ratio to a warm run."""

from __future__ import annotations

from pathlib import Path

from bench.cold_cycles import cold_cycles
from bench.cold_start import cold_start
from tests.profiling.cpu.test_layers import CODE


def test_every_way_is_timed_beside_a_warm_run(tmp_path: Path) -> None:
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "1" / "model.py").write_text(CODE)
    report = cold_start(tmp_path, model="net", takes=2)
    predicted, times = report.figures
    plans = {"copy", "pipeswitch", "deepplan-dha", "interlace", "all left in the file"}
    assert predicted.keys() == plans
    beside = {"warm", "warm, flushed", "interlace, flushed", "opened", "loaded"}
    assert times.keys() == plans | beside
    assert all(took_ms > 0.0 for ones in times.values() for took_ms in ones)
    assert [row.published for row in report.rows] == [1.10, 1.10, 4.0, None]


def test_from_disk_every_way_is_beside_reading_the_file(tmp_path: Path) -> None:
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "1" / "model.py").write_text(CODE)
    report = cold_start(tmp_path, model="net", takes=2, disk=True)
    predicted, times = report.figures
    assert {"read", "copy", *predicted} < times.keys()
    assert [row.published for row in report.rows] == [1.15, 3.5, None]


def test_cycles_leave_what_was_there(tmp_path: Path) -> None:
    for name in ("net", "other"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text(CODE)
    ours = cold_cycles(tmp_path, comes="net", neighbour="other", seconds=0.2, turns=2).ours
    assert ours["cycles"] >= 2
    assert ours["slowest eviction"] > 0.0
    assert ours["descriptors after less before"] == 0.0
