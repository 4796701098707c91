"""Simulated runs as drawings: latency, tiles, goodput against load, accelerators over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Final

from interlace.core.figure_file import save_figure
from interlace.planning.simulation import SimulationResult
from interlace.sim.drawings import accelerators, against_load, by_model, latency_cdf, tiles
from interlace.sim.report import Report

#: What can be drawn.
KINDS: Final = ("cdf", "tiles", "load", "gpus")
_TILES_MS: Final = 250.0


def draw_runs(kind: str, path: Path, runs: Sequence[SimulationResult]) -> None:
    """Draw runs: each system's first one, for tiles the beginning of the first of all.

    Latency is drawn a line a model where there is one system; goodput is the mean of all seeds.
    """
    records = {run.system: run.record for run in reversed(runs)}
    if kind == "cdf":
        figure = latency_cdf(records if len(records) > 1 else by_model(runs[0].record))
    elif kind == "tiles":
        figure = tiles(runs[0].record, 0.0, _TILES_MS)
    elif kind == "gpus":
        figure = accelerators(records)
    else:
        figure = against_load(_goodput_rps(runs))
    save_figure(figure, path)


def _goodput_rps(runs: Sequence[SimulationResult]) -> dict[str, list[tuple[float, float]]]:
    """Offered and in time, means over seeds, of every system and load."""
    by_load: dict[tuple[str, float], list[Report]] = {}
    for run in runs:
        by_load.setdefault((run.system, run.settings.load), []).append(run.report)
    points: dict[str, list[tuple[float, float]]] = {}
    for (system, _), reports in by_load.items():
        offered = mean(one.offered_rps for one in reports)
        points.setdefault(system, []).append((offered, mean(one.goodput_rps for one in reports)))
    return points
