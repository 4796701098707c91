"""The overload picture: goodput, latency of the accepted, speed of refusals, by offered load."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

Row = dict[str, Any]
LABELS = {
    "ours": "Interlace", "triton": "Triton, defaults", "triton_queue": "Triton, queue policy",
    "mosec": "mosec", "torchserve": "TorchServe",
}  # fmt: skip
COLOURS = {
    "ours": "#d1495b", "triton": "#2e6f95", "triton_queue": "#7fb4d6", "mosec": "#3a7d44",
    "torchserve": "#8a6d3b",
}  # fmt: skip


def points(rows: list[Row], peer: str, key: str, scale: bool = False) -> list[list[float]]:
    """Rows of (factor, median, least, greatest) over repetitions; ``scale`` divides by capacity."""
    by_factor: dict[float, list[float]] = {}
    for row in rows:
        if row["peer"] == peer and "curve" in row:
            for point in row["curve"]:
                if point[key] is not None:
                    value = point[key] / (row["capacity_rps"] if scale else 1)
                    by_factor.setdefault(point["factor"], []).append(value)
    return [[f, statistics.median(v), min(v), max(v)] for f, v in sorted(by_factor.items())]


def draw(folder: Path) -> None:
    """Read overload.json of a folder; write overload.png and overload.svg beside it."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    data = json.loads((folder / "overload.json").read_text())
    rows, slo_ms = data["rows"], data["slo_ms"]
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.6), constrained_layout=True)
    panels = [
        ("goodput_rps", f"Replies within {slo_ms:g} ms, as a share of own capacity", True),
        ("accepted_p99_ms", "p99 of accepted requests, ms", False),
        ("refusal_p99_ms", "p99 of refusals, ms", False),
    ]
    for axis, (key, title, scale) in zip(axes, panels, strict=True):
        for peer in dict.fromkeys(row["peer"] for row in rows):
            curve = points(rows, peer, key, scale)
            if curve:
                x, y, low, high = (list(column) for column in zip(*curve, strict=True))
                colour = COLOURS.get(peer)
                axis.plot(x, y, "o-", color=colour, label=LABELS.get(peer, peer), markersize=4)
                axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("offered load / own capacity")
        axis.grid(alpha=0.25)
    axes[0].set_ylim(bottom=0)
    for axis in axes[1:]:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_minor_formatter(
            lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else ""
        )
    axes[1].axhline(slo_ms, color="black", linewidth=1, linestyle="--")
    axes[1].annotate("SLO", (0.5, slo_ms), textcoords="offset points", xytext=(0, 4))
    axes[0].legend(frameon=False, fontsize=9)
    for suffix in ("png", "svg"):
        figure.savefig(folder / f"overload.{suffix}", dpi=130)
    plt.close(figure)


def main() -> None:
    """Draw again from a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/bench/overload"))
    draw(parser.parse_args().folder)


if __name__ == "__main__":
    main()
