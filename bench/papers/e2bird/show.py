"""What every command of this folder does with its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.papers.gpulet.compare import COLOURS, Row, options, show

__all__ = ["COLOURS", "Row", "report"]

Draw = Callable[[Axes], None]


def report(
    doc: str | None, rows: Sequence[Row], draw: Draw, name: str, arguments: list[str] | None
) -> list[Row]:
    """Print a command's conditions and its table; write its picture; return the rows."""
    chosen = options(doc).parse_args(arguments)
    title, _, conditions = (doc or "").partition("\n")
    show(f"E2bird {title}", conditions, rows)
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    path: Path = chosen.out / f"e2bird-{name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "interlace"}):  # the same file each time
        figure.savefig(path, metadata={"Date": None})
    print(f"\npicture: {path}")
    return list(rows)
