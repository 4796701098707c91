"""What a benchmark found: figures beside published ones, tables, pictures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = object
#: Draws into an empty figure; returns another one if it has made that itself.
Draw = Callable[["Figure"], "Figure | None"]

#: More of them are cut short on a narrow screen.
_MOST_COLUMNS: Final = 6


class Row(NamedTuple):
    """A figure of ours, beside the published one; ``published`` is none where it is only drawn."""

    what: str
    published: float | None
    ours: float
    unit: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.published if self.published else None


def each(
    what: str,
    values: Mapping[Any, float],
    unit: str = "",
    published: Mapping[Any, float] | Mapping[Any, float | None] | float | None = None,
) -> list[Row]:
    """A row for each value; ``what`` has the name, or its parts, where the braces are."""
    rows = []
    for name, ours in values.items():
        printed = published.get(name) if isinstance(published, Mapping) else published
        parts = name if isinstance(name, tuple) else (name,)
        rows.append(Row(what.format(*parts), printed, ours, unit))
    return rows


class Table(NamedTuple):
    """Cells under heads; the first column is text, the others are figures."""

    heads: Sequence[str]
    cells: Sequence[Sequence[Cell]]
    title: str = ""

    def markdown(self) -> str:
        """The table as the documentation has it."""
        lines = [f"**{self.title}**", ""] if self.title else []
        lines += [_line(self.heads), _line(["---", *["--:"] * (len(self.heads) - 1)])]
        return "\n".join(lines + [_line([as_text(cell) for cell in one]) for one in self.cells])

    def print(self) -> None:
        """The table on the screen; a wide one as the documentation has it."""
        if len(self.heads) > _MOST_COLUMNS:
            print(self.markdown())
            return
        import rich.box
        import rich.console
        import rich.table

        table = rich.table.Table(title=self.title or None, box=rich.box.SIMPLE_HEAD)
        for place, head in enumerate(self.heads):
            table.add_column(head, justify="right" if place else "left", no_wrap=place > 0)
        for one in self.cells:
            table.add_row(*(as_text(cell) for cell in one))
        rich.console.Console().print(table, markup=False)


class Picture(NamedTuple):
    """How a figure is drawn, in inches; the suffix ends its file's name and says its format."""

    draw: Draw
    size: tuple[float, float] = (7.0, 3.2)
    suffix: str = ".svg"


@dataclass(frozen=True, slots=True)
class Report:
    """What a benchmark returns.

    ``draw`` makes its picture, of ``size`` in inches; ``more`` are further ones. ``figures`` are
    kept as they are; ``broken`` says what must not be and was, which makes the command fail.
    """

    rows: Sequence[Row] = ()
    draw: Draw | None = None
    size: tuple[float, float] = (7.0, 3.2)
    tables: Sequence[Table] = ()
    more: Sequence[Picture] = ()
    figures: Any = None
    notes: str = ""
    broken: Sequence[str] = ()

    @property
    def pictures(self) -> Sequence[Picture]:
        return ([Picture(self.draw, self.size)] if self.draw else []) + list(self.more)

    @property
    def ours(self) -> dict[str, float]:
        """Our figures by what they are."""
        return {row.what: row.ours for row in self.rows}

    def print(self) -> None:
        """The tables on the screen."""
        for table in (*([compared(self.rows)] if self.rows else []), *self.tables):
            table.print()
        if self.notes:
            print(self.notes)
        for one in self.broken:
            print(f"broken: {one}")

    def plain(self) -> dict[str, Any]:
        """What is kept as JSON."""
        return {
            **({"rows": [row._asdict() for row in self.rows]} if self.rows else {}),
            **({"tables": [table._asdict() for table in self.tables]} if self.tables else {}),
            **({"figures": self.figures} if self.figures is not None else {}),
            "broken": list(self.broken),
        }


def compared(rows: Sequence[Row]) -> Table:
    """Ours beside the published figures."""
    cells = [
        (
            row.what,
            None if row.published is None else f"{_number(row.published)}{row.unit}",
            f"{_number(row.ours)}{row.unit}",
            None if row.ratio is None else f"{row.ratio:.2f}",
        )
        for row in rows
    ]
    return Table(("", "published", "ours", "ratio"), cells)


def as_text(cell: Cell) -> str:
    """A cell as it is shown."""
    if cell is None:
        return "-"
    return _number(cell) if isinstance(cell, float) else str(cell)


def _number(value: float) -> str:
    """Four digits, and all of those before the point."""
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
