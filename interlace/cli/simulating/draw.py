"""The drawings of `interlace simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from interlace.cli.failure import InputError
from interlace.cli.planning.draw import check_suffix
from interlace.cli.simulating.trial import Trial
from interlace.sim.report.draw import accelerators, against_load, latency_cdf, save, tiles

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


def draw(kind: str, path: Path, trials: Sequence[Trial]) -> None:
    """Draw runs: every system's, or for tiles the first one's beginning."""
    records = {trial.system: trial.record for trial in trials}
    if kind == "cdf":
        figure = latency_cdf(records)
    elif kind == "tiles":
        figure = tiles(trials[0].record, 0.0, _TILES_MS)
    elif kind == "gpus":
        figure = accelerators(records)
    else:
        points: dict[str, list[tuple[float, float]]] = {}
        for trial in trials:
            one = trial.report
            points.setdefault(trial.system, []).append((one.offered_rps, one.goodput_rps))
        figure = against_load(points)
    save(figure, path)
