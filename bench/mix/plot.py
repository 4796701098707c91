"""Ratios of ours to the best peer with their spread, and the picture."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

Row = dict[str, Any]
MEASURES = ("goodput_rps", "work_goodput", "mean_attainment", "worst_attainment")


def summary(rows: list[Row]) -> Row:
    """By measure: medians by server and load, and ours over the best peer by repetition.

    The best peer is taken anew at each load and repetition, whatever its tuning; ``peak`` compares
    each server's greatest value over all loads.
    """
    good = [row for row in rows if "fail" not in row]
    return {measure: _one(good, measure) for measure in MEASURES}


def _one(rows: list[Row], measure: str) -> Row:
    loads = sorted({row["load"] for row in rows})
    medians = {
        peer: {str(load): _median(rows, peer, load, measure) for load in loads}
        for peer in dict.fromkeys(row["peer"] for row in rows)
    }
    ratios = {str(load): _ratios([r for r in rows if r["load"] == load], measure) for load in loads}
    return {
        "medians": medians,
        "ratio_to_best_peer": ratios,
        "ratio_at_peak": _ratios(rows, measure),
    }


def _median(rows: list[Row], peer: str, load: float, measure: str) -> float | None:
    values = [row[measure] for row in rows if row["peer"] == peer and row["load"] == load]
    return round(statistics.median(values), 3) if values else None


def _ratios(rows: list[Row], measure: str) -> Row | None:
    """Ours over the best peer in each repetition: median, least, greatest."""
    ratios = []
    for seed in {row["seed"] for row in rows}:
        ours = [r[measure] for r in rows if r["seed"] == seed and r["peer"] == "ours"]
        best = [r[measure] for r in rows if r["seed"] == seed and r["peer"] != "ours"]
        if ours and best and max(best) > 0:
            ratios.append(max(ours) / max(best))
    if not ratios:
        return None
    figures = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return {key: round(value, 3) for key, value in figures.items()} | {"n": len(ratios)}


def draw(folder: Path) -> None:
    """Read mix.json of a folder; write mix.png and mix.svg beside it."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in json.loads((folder / "mix.json").read_text())["rows"] if "fail" not in r]
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.6), constrained_layout=True)
    titles = {
        "goodput_rps": "Replies within their SLO, per second",
        "work_goodput": "Work answered in time, core seconds per second",
        "worst_attainment": "Share within SLO, worst model",
    }
    for axis, (measure, title) in zip(axes, titles.items(), strict=True):
        for number, peer in enumerate(dict.fromkeys(row["peer"] for row in rows)):
            own = [row for row in rows if row["peer"] == peer]
            loads = sorted({row["load"] for row in own})
            values = [[r[measure] for r in own if r["load"] == load] for load in loads]
            style = {"color": "#d1495b", "linewidth": 2.4} if peer == "ours" else {
                "color": f"C{number}", "linewidth": 1.2}  # fmt: skip
            label = "Interlace" if peer == "ours" else peer
            axis.plot(
                loads,
                [statistics.median(v) for v in values],
                "o-",
                label=label,
                markersize=4,
                **style,
            )
            axis.fill_between(loads, [min(v) for v in values], [max(v) for v in values],
                              color=style["color"], alpha=0.12, linewidth=0)  # fmt: skip
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("offered work / both cores")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
    axes[0].legend(frameon=False, fontsize=9)
    for suffix in ("png", "svg"):
        figure.savefig(folder / f"mix.{suffix}", dpi=130)
    plt.close(figure)


def main() -> None:
    """Draw again from a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/bench/mix"))
    draw(parser.parse_args().folder)


if __name__ == "__main__":
    main()
