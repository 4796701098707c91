"""The table of a comparison: ours, the best other, and their ratio seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, Final

from bench.harness import Table, interval

OURS: Final = "interlace"
_Run = Mapping[str, Any]
_HEADS: Final = (
    "workload", "load", "CV", "GPUs", "offered/s", "interlace, in time", "best other",
    "its in time", "ours / best other", "worst model, ours", "its", "starved",
)  # fmt: skip


#: A model of which less is in time is starved, where another system has as much of it in time.
_STARVED, _SERVED = 0.1, 0.9


def grouped(kept: Mapping[str, Any]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Runs by (world, load, cv), then by system."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for key, one in kept.items():
        world, load, cv, system = key.split("|")
        found.setdefault((world, load, cv), {})[system] = one
    return found


def table(kept: Mapping[str, Any]) -> Table:
    """One line a world, load and variation; 95 % intervals over the seeds.

    ``starved`` are models that ours does not serve, and another does.
    """
    lines = []
    for (world, load, cv), systems in sorted(grouped(kept).items()):
        if OURS not in systems or len(systems) < 2:
            continue
        ours = systems[OURS]["runs"]
        others = {name: one["runs"] for name, one in systems.items() if name != OURS}
        name = max(others, key=lambda one: mean(run["goodput_rps"] for run in others[one]))
        best = others[name]
        ratios = [a["goodput_rps"] / b["goodput_rps"] for a, b in zip(ours, best, strict=True)]
        offered = f"{mean(run['offered_rps'] for run in ours):.0f}"
        worst = [_percent([run["worst"] for run in runs]) for runs in (ours, best)]
        cells = (world, load, cv, systems[OURS]["gpus"], offered, _part(ours), name, _part(best))
        starved = _starved(ours, list(others.values()))
        lines.append((*cells, interval(ratios).text(), *worst, starved))
    return Table(_HEADS, lines)


def _starved(ours: Sequence[_Run], others: Sequence[Sequence[_Run]]) -> int:
    mine = _attainments(ours)
    theirs = [_attainments(one) for one in others]
    most = {model: max(one.get(model, 0.0) for one in theirs) for model in mine}
    return sum(mine[model] < _STARVED and most[model] >= _SERVED for model in mine)


def _attainments(runs: Sequence[_Run]) -> dict[str, float]:
    """The mean of each model's over the runs."""
    models = runs[0].get("models", {})  # results of before have none
    return {name: mean(run["models"].get(name, 1.0) for run in runs) for name in models}


def _part(runs: Sequence[_Run]) -> str:
    return _percent([run["goodput_rps"] / run["offered_rps"] for run in runs])


def _percent(parts: Sequence[float]) -> str:
    return interval([100 * part for part in parts]).text(1) + " %"
