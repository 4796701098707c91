"""Knees and sizes from the V100 measurements, where they are at hand."""

from pathlib import Path

import pytest

from bench.planning.v100 import read, v100
from interlace.perf.latency import surface
from interlace.perf.sizing import knee_pct
from tests.bench.conftest import Drawn

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "v100" / "latency.csv"

measured = pytest.mark.skipif(not DATA.exists(), reason=f"no measurements at {DATA}")


@measured
def test_measured_points_are_within_two_percent_of_the_surface() -> None:
    # Raised only by noise: a smaller batch or a larger share that looked slower.
    for profile in read(DATA).values():
        known = surface(profile, "median_ms")
        raised = [
            known.latency_ms(batch, share) / point.median_ms - 1.0
            for (batch, share), point in profile.points.items()
        ]
        assert min(raised) >= 0.0
        assert sorted(raised)[int(0.9 * len(raised))] < 0.02


@measured
def test_knees_grow_with_the_batch_as_figure_4d_says() -> None:
    for model, profile in read(DATA).items():
        known = surface(profile, "median_ms")
        knees = [knee_pct(known, batch) for batch in (1, 16)]
        assert knees[0] <= knees[1], model


@measured
def test_the_table_has_every_model_and_is_drawn(drawn: Drawn) -> None:
    report = drawn(v100(data=DATA))
    assert {row["model"] for row in report.figures} == set(read(DATA))
