"""Drawings are made, and tiles do not lie on each other."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from interlace.core.figure_file import model_colours, save_figure
from interlace.sim.drawings import _stacked as stacked
from interlace.sim.drawings import accelerators, against_load, by_model, latency_cdf, tiles
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
    bottoms = [(run.model, [bottom for bottom, _ in pieces]) for run, pieces in placed]
    assert bottoms == [("a", [0]), ("c", [50]), ("b", [0, 100])], "b is too large for the GPU"


def test_what_fits_on_a_gpu_fits_in_the_drawing() -> None:
    """A gap below and one above: a tile that is larger than each lies in both."""
    spans = {"low": (0, 5, 30), "middle": (0, 20, 30), "top": (0, 20, 20), "late": (6, 20, 50)}
    runs = [
        replace(RUNS[0], model=model, started_ms=start, ended_ms=end, share_pct=share)
        for model, (start, end, share) in spans.items()
    ]
    places = {run.model: pieces for run, pieces in stacked(runs)}
    assert places["middle"] == ((0, 30),) or places["low"] == ((0, 30),)
    assert sum(height for _, height in places["late"]) == 50
    assert max(sum(piece) for pieces in places.values() for piece in pieces) == 100


def test_tiles_explain_their_lines_beside_the_drawing() -> None:
    figure = tiles(RECORD, 0.0, 50.0)
    (legend,) = figure.legends
    assert "SLO, from the left" in [text.get_text() for text in legend.get_texts()]
    assert all(axes.get_legend() is None for axes in figure.axes)


def test_forty_models_have_forty_colours() -> None:
    assert len(set(model_colours([f"m{n}" for n in range(40)]).values())) == 40
