"""Pictures: the same figures make the same file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.harness.report import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#999999", "#56b4e9")


def save(picture: Picture, path: Path) -> None:
    """Draw a picture into a file; its suffix says the format."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=picture.size, layout="constrained")
    figure = picture.draw(figure) or figure
    for axes in figure.axes:
        axes.spines["top"].set_visible(False)
        if axes.yaxis.get_label_position() == "left":
            axes.spines["right"].set_visible(False)
    kept = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "interlace"}):
        figure.savefig(path, metadata=kept, dpi=120)


def grouped_bars(
    figure: Figure | Axes,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    label: str,
    legend: bool = True,
) -> Axes:
    """Bars in groups, one colour for each series, over all of a figure or in one panel of it."""
    axes: Axes = figure.subplots() if hasattr(figure, "subplots") else figure
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        places = [i + (index - (len(series) - 1) / 2) * width for i in range(len(groups))]
        axes.bar(places, list(values), width, label=name, color=COLOURS[index % len(COLOURS)])
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    axes.set_ylabel(label)
    if legend:
        axes.legend(frameon=False, fontsize=8)
    return axes
