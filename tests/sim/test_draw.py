"""Drawings are made, and tiles do not lie on each other."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from interlace.core.figure_file import save_figure
from interlace.sim.report.draw import _stacked as stacked
from interlace.sim.report.draw import accelerators, against_load, by_model, latency_cdf, tiles
from tests.sim.test_report import RECORD, RUNS


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_every_drawing_is_written(tmp_path: Path, suffix: str) -> None:
    drawn = {
        "cdf": latency_cdf({"one": RECORD, "other": RECORD}),
        "models": latency_cdf(by_model(RECORD)),
        "tiles": tiles(RECORD, 0.0, 50.0),
        "load": against_load({"one": [(10.0, 9.0), (20.0, 12.0)]}),
        "gpus": accelerators({"one": RECORD}),
    }
    for name, figure in drawn.items():
        path = tmp_path / "deep" / f"{name}{suffix}"
        save_figure(figure, path)
        assert path.stat().st_size > 1_000


def test_tiles_lie_side_by_side() -> None:
    beside = replace(RUNS[0], started_ms=6.0, ended_ms=12.0, model="c")
    placed = stacked([RUNS[0], beside, RUNS[1]])
    assert [(run.model, bottom) for run, bottom in placed] == [("a", 0), ("c", 50), ("b", 100)]
