"""The drawings of `interlace simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Final

from interlace.core.user_errors import InputError
from interlace.planning.drawing import check_suffix
from interlace.planning.simulation import SimulationResult
from interlace.sim.report import Report
from interlace.sim.report.draw import (
    accelerators,
    against_load,
    by_model,
    latency_cdf,
    save,
    tiles,
)

#: What can be drawn, and of what.
KINDS: Final = ("cdf", "tiles", "load", "gpus")
_TILES_MS: Final = 250.0


def drawings(texts: Sequence[str]) -> list[tuple[str, Path]]:
    """``KIND=FILE`` texts.

    Raises:
        InputError: an unknown kind, no file, or a suffix that is not drawn.
    """
    found: list[tuple[str, Path]] = []
    for text in texts:
        kind, _, file = text.partition("=")
        if kind not in KINDS or not file:
            raise InputError(f"--plot {text}: expected KIND=FILE, KIND one of {', '.join(KINDS)}")
        check_suffix(Path(file))
        found.append((kind, Path(file)))
    return found


def draw(kind: str, path: Path, trials: Sequence[SimulationResult]) -> None:
    """Draw runs: each system's first one, for tiles the beginning of the first of all.

    Latency is drawn a line a model where there is one system; goodput is the mean of all seeds.
    """
    records = {trial.system: trial.record for trial in reversed(trials)}
    if kind == "cdf":
        figure = latency_cdf(records if len(records) > 1 else by_model(trials[0].record))
    elif kind == "tiles":
        figure = tiles(trials[0].record, 0.0, _TILES_MS)
    elif kind == "gpus":
        figure = accelerators(records)
    else:
        figure = against_load(_goodput_rps(trials))
    save(figure, path)


def _goodput_rps(trials: Sequence[SimulationResult]) -> dict[str, list[tuple[float, float]]]:
    """Offered and in time, means over seeds, of every system and load."""
    runs: dict[tuple[str, float], list[Report]] = {}
    for trial in trials:
        runs.setdefault((trial.system, trial.settings.load), []).append(trial.report)
    points: dict[str, list[tuple[float, float]]] = {}
    for (system, _), reports in runs.items():
        offered = mean(one.offered_rps for one in reports)
        points.setdefault(system, []).append((offered, mean(one.goodput_rps for one in reports)))
    return points
