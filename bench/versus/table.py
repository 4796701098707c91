"""What `bench.versus.run` kept, as tables: `python -m bench.versus.table FOLDER/versus.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

#: Student's t for a 95 % interval of so many runs.
_T95: Final = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
OURS: Final = "interlace"


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % interval."""
    if len(values) < 2:
        return values[0], 0.0
    return mean(values), _T95[len(values)] * stdev(values) / len(values) ** 0.5


def grouped(kept: Mapping[str, Any]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Runs by (world, load, cv), then by system."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for key, one in kept.items():
        world, load, cv, system = key.split("|")
        found.setdefault((world, load, cv), {})[system] = one
    return found


def lines(kept: Mapping[str, Any]) -> list[str]:
    """One line a world, load and variation: ours, the best other, the ratio seed by seed."""
    told = [
        "| workload | load | CV | GPUs | offered/s | interlace, in time | best other | its in time "
        "| ours / best other | worst model, ours | its |",
        "|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|",
    ]
    for (world, load, cv), systems in sorted(grouped(kept).items()):
        if OURS not in systems or len(systems) < 2:
            continue
        ours = systems[OURS]["runs"]
        others = {name: one["runs"] for name, one in systems.items() if name != OURS}
        name = max(others, key=lambda one: mean(run["goodput_rps"] for run in others[one]))
        best = others[name]
        ratios = [a["goodput_rps"] / b["goodput_rps"] for a, b in zip(ours, best, strict=True)]
        offered = mean(run["offered_rps"] for run in ours)
        told.append(
            f"| {world} | {load} | {cv} | {systems[OURS]['gpus']} | {offered:.0f} "
            f"| {_part(ours)} | {name} | {_part(best)} | {_pm(ratios, 3)} "
            f"| {_percent([run['worst'] for run in ours])} "
            f"| {_percent([run['worst'] for run in best])} |"
        )
    return told


def _part(runs: Sequence[Mapping[str, float]]) -> str:
    return _percent([run["goodput_rps"] / run["offered_rps"] for run in runs])


def _percent(parts: Sequence[float]) -> str:
    return _pm([100 * part for part in parts], 1) + " %"


def _pm(values: Sequence[float], digits: int) -> str:
    middle, half = spread(values)
    return f"{middle:.{digits}f} ± {half:.{digits}f}"


def main() -> None:
    print("\n".join(lines(json.loads(Path(sys.argv[1]).read_text()))))


if __name__ == "__main__":
    main()
