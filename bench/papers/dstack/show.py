"""What every command of this folder does with its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.papers.gpulet.compare import COLOURS, Row, bars, options, show

__all__ = ["COLOURS", "Row", "bars", "options", "report"]

Draw = Callable[[Figure], None]


def report(
    doc: str | None,
    rows: Sequence[Row],
    draw: Draw | None,
    name: str,
    arguments: list[str] | None,
    size: tuple[float, float] = (7.0, 3.2),
) -> list[Row]:
    """Print a command's conditions and its table; write its picture; return the rows."""
    chosen = options(doc).parse_args(arguments)
    title, _, conditions = (doc or "").partition("\n")
    show(f"D-STACK {title}", conditions, rows)
    if draw is not None:
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        chosen.out.mkdir(parents=True, exist_ok=True)
        path = chosen.out / f"dstack-{name}.svg"
        with rc_context({"svg.hashsalt": "interlace"}):
            figure.savefig(path, metadata={"Date": None})
        print(f"\npicture: {path}")
    return list(rows)
