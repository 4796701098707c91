"""Ours beside the published figures: a table on the screen, and a picture."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

PICTURES = Path("docs/pictures/papers")
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#999999", "#56b4e9")


class Row(NamedTuple):
    """One figure of the paper, and the same here; ``published`` is none where it is only drawn."""

    what: str
    published: float | None
    ours: float
    unit: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.published if self.published else None


def show(title: str, conditions: str, rows: Sequence[Row]) -> None:
    """Print the conditions that were left open, then the table."""
    print(f"{title}\n\n{conditions.strip()}\n")
    width = max(len(row.what) for row in rows)
    print(f"{'':{width}} {'published':>12} {'ours':>12} {'ratio':>7}")
    for row in rows:
        published = "-" if row.published is None else f"{row.published:.4g}{row.unit}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        print(f"{row.what:{width}} {published:>12} {row.ours:>11.4g}{row.unit} {ratio:>6}")


def options(doc: str | None) -> argparse.ArgumentParser:
    """What every command takes."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=PICTURES, help="folder of the picture")
    parser.add_argument("--full", action="store_true", help="all of it, however long it takes")
    return parser


def bars(
    figure: Figure, groups: Sequence[str], series: Mapping[str, Sequence[float]], label: str
) -> None:
    """Grouped bars, one colour for each series."""
    axes = figure.subplots()
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        places = [i + (index - (len(series) - 1) / 2) * width for i in range(len(groups))]
        axes.bar(places, values, width, label=name, color=COLOURS[index])
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, out: Path, name: str) -> None:
    """Write the picture, alike each time."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"gpulet-{name}.svg"
    with rc_context({"svg.hashsalt": "interlace"}):
        figure.savefig(path, metadata={"Date": None})
    print(f"\npicture: {path}")
