"""What every command of this folder does with its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.papers.gpulet.compare import COLOURS, Row, options, show

__all__ = ["COLOURS", "Row", "options", "report"]

Draw = Callable[[Sequence[Axes]], None]


def report(
    doc: str | None,
    rows: Sequence[Row],
    draw: Draw,
    name: str,
    out: Path,
    panels: int = 1,
) -> list[Row]:
    """Print a command's conditions and its table; write its picture; return the rows."""
    title, _, conditions = (doc or "").partition("\n")
    show(f"GPU primitives, {title}", conditions, rows)
    figure = Figure(figsize=(max(6, 3.2 * panels), 3), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    draw(axes)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"primitives-{name}.svg"
    with rc_context({"svg.hashsalt": "interlace"}):  # the same file each time
        figure.savefig(path, metadata={"Date": None})
    print(f"\npicture: {path}")
    return list(rows)
