"""Pictures: the same figures make the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.harness.report import Draw, Picture

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
        side: str = axes.yaxis.get_label_position()
        if side == "left":
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


def bars(
    groups: Iterable[str],
    series: Mapping[str, Sequence[float]],
    label: str,
    *,
    level: float | None = None,
    legend: bool = True,
    **settings: Any,
) -> Callable[[Figure | Axes], None]:
    """Draws grouped bars, and a line at ``level``; ``settings`` are those of the axes."""

    def draw(figure: Figure | Axes) -> None:
        axes = grouped_bars(figure, list(groups), series, label, legend)
        _finish(axes, level, settings)

    return draw


def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    style: str = "-",
    *,
    level: float | None = None,
    **settings: Any,
) -> Callable[[Figure | Axes], None]:
    """Draws y over x for each name, and a line at ``level``."""

    def draw(figure: Figure | Axes) -> None:
        axes: Axes = figure.subplots() if hasattr(figure, "subplots") else figure
        for index, (name, (x, y)) in enumerate(lines.items()):
            axes.plot(x, y, style, color=COLOURS[index % len(COLOURS)], lw=1, ms=4, label=name)
        _finish(axes, level, settings)
        axes.legend(frameon=False, fontsize=8)

    return draw


def panels(*each: Callable[[Axes], None]) -> Draw:
    """Drawings side by side."""

    def draw(figure: Figure) -> None:
        for axes, one in zip(figure.subplots(1, len(each)), each, strict=True):
            one(axes)

    return draw


def rate_and_latency(
    places: Sequence[float],
    rates: Sequence[float],
    times_ms: Sequence[float],
    **settings: Any,
) -> Callable[[Axes], None]:
    """Draws images/s (squares) on the left and p99 in ms on the right."""

    def draw(axes: Axes) -> None:
        axes.plot(places, rates, "s-", color=COLOURS[5])
        axes.set(ylabel="images/s (squares)", ylim=(0, None), **settings)
        right = axes.twinx()
        right.plot(places, times_ms, "o-", color=COLOURS[0])
        right.set(ylabel="p99, ms", ylim=(0, None))

    return draw


def _finish(axes: Axes, level: float | None, settings: Mapping[str, Any]) -> None:
    if level is not None:
        axes.axhline(level, color="black", lw=0.8)
    axes.set(**settings)
