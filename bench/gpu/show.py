"""Rows on a terminal: tables where rich is there, plain lines otherwise."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bench.gpu.parts import Part
from bench.gpu.rows import Row, Verdict

_COLOURS: Final = {
    Verdict.AS_EXPECTED: "green",
    Verdict.OTHER: "yellow",
    Verdict.SEEN: "cyan",
    Verdict.SKIPPED: "dim",
    Verdict.FAILED: "bold red",
    Verdict.DRY: "dim",
}
_WIDTH: Final = 110

Result = tuple[Part, Sequence[Row], float]


class Screen:
    """Shows rows as they come, and a table of all parts at the end."""

    def __init__(self, dry: bool) -> None:
        self._dry = dry
        if find_spec("rich") is None:
            self._rich = None
        else:
            from rich.console import Console

            self._rich = Console(highlight=False, soft_wrap=True)

    def part(self, part: Part, seconds: float) -> None:
        """A part begins that is ended after ``seconds``."""
        self._line(f"\n{part.name}: {part.tells} (at most {seconds:.0f} s)", "bold")

    def row(self, row: Row) -> None:
        """One finding."""
        wanted = f" (expected: {row.expected})" if row.expected else ""
        text = f"{row.verdict.value:>12}  {row.what}: {row.found}{wanted}"
        self._line(textwrap.fill(text, _WIDTH, subsequent_indent=" " * 14), _COLOURS[row.verdict])

    def ended(self, seconds: float, resumed: bool) -> None:
        """A part ended, now or before."""
        words = f"took {seconds:.1f} s before" if resumed else f"{seconds:.1f} s"
        self._line(f"{'':>14}{words}", "dim")

    def summary(self, results: Sequence[Result], out: Path) -> None:
        """How each part ended, and where the findings lie."""
        self._line("")
        if self._rich is None:
            for cells in _cells(results):
                self._line("  ".join(cells))
        else:
            self._table(results)
        if self._dry:
            self._line("A dry run: no GPU was used, and no figure above says anything of one.")
        self._line(f"findings: {out}/PART.json")

    def _table(self, results: Sequence[Result]) -> None:
        from rich.table import Table

        table = Table(box=None, header_style="bold")
        for head in ("part", "seconds", *(verdict.value for verdict in Verdict)):
            table.add_column(head, justify="left" if head == "part" else "right")
        for cells in _cells(results):
            table.add_row(*cells)
        assert self._rich is not None
        self._rich.print(table)

    def _line(self, text: str, style: str = "") -> None:
        if self._rich is None:
            print(text, flush=True)
        else:
            self._rich.print(text, style=style or None, markup=False)


def _cells(results: Sequence[Result]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for part, rows, seconds in results:
        counts = [sum(row.verdict is verdict for row in rows) for verdict in Verdict]
        cells = [f"{count}" if count else "" for count in counts]
        found.append((f"{part.name:<13}", f"{seconds:6.1f}", *(f"{cell:>4}" for cell in cells)))
    return found
