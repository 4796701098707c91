"""Rows on a terminal: tables where rich is there, plain lines otherwise."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bench.gpu.findings import ROWS, RUN, Findings, Found, count
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
#: Of a long output often only the end is seen: what went wrong is said there again.
_AGAIN_CHARS: Final = 6000
_ROW_CHARS: Final = 400


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

    def ended(self, found: Found) -> None:
        """A part ended, now or before."""
        words = f"took {found.seconds:.1f} s before" if found.resumed else f"{found.seconds:.1f} s"
        self._line(f"{'':>14}{words}", "dim")

    def left_out(self, part: Part) -> None:
        """There is not enough time for a part."""
        self._line(f"\n{part.name}: left out, it needs {part.seconds:.0f} s", "dim")

    def cut(self, why: str) -> None:
        """The run ends before its parts do."""
        self._line(f"\n{why}: what has been found is kept", "bold red")

    def summary(self, findings: Findings, bundle: Path) -> None:
        """How each part ended; what failed once more; where the findings lie."""
        self._line("")
        if self._rich is None:
            for cells in _cells(findings.results):
                self._line("  ".join(cells))
        else:
            self._table(findings.results)
        for line in again(findings):
            self._line(line)
        if self._dry:
            self._line("A dry run: no GPU was used, and no figure above says anything of one.")
        if findings.missing:
            self._line(f"no room in the bundle for: {', '.join(findings.missing)}"[:_ROW_CHARS])
        self._line(f"findings: {findings.out}/PART.json, all in one: {bundle}")

    def _table(self, results: Sequence[Found]) -> None:
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


def again(findings: Findings) -> list[str]:
    """What failed, then what is not as expected, in few lines; and what has not been run."""
    rows = [(RUN, row) for row in findings.machine]
    rows += [(one.part.name, row) for one in findings.results for row in one.rows]
    broken = [each for each in rows if each[1].broken]
    other = [each for each in rows if each[1].verdict is Verdict.OTHER and not each[1].broken]
    held = sum(row.binding and not row.broken for _, row in rows)
    lines = [f"\n{held} laws hold; {len(broken)} rows failed, {len(other)} are not as expected"]
    unfinished = [one.part.name for one in findings.results if not one.finished]
    if findings.cut:
        lines.append(findings.cut)
    if unfinished:
        lines.append(f"did not come to their end: {', '.join(unfinished)}")
    if findings.left_out:
        names = ", ".join(part.name for part in findings.left_out)
        lines.append(f"no time was left for: {names}; --resume goes on with them")
    left = _AGAIN_CHARS - sum(map(len, lines)) - len(lines)
    for place, (name, row) in enumerate((*broken, *other)):
        wanted = f" (expected: {row.expected})" if row.expected else ""
        line = f"{name}: {row.what}: {row.found}{wanted}".replace("\n", " ")
        line = line if len(line) <= _ROW_CHARS else f"{line[: _ROW_CHARS - 3]}..."
        rest = f"and {len(broken) + len(other) - place} more, in {ROWS}"
        if len(line) + len(rest) + 2 > left:
            return [*lines, rest]
        left -= len(line) + 1
        lines.append(line)
    return lines


def _cells(results: Sequence[Found]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for one in results:
        counts = [count(one.rows, verdict) for verdict in Verdict]
        cells = [f"{number}" if number else "" for number in counts]
        name, seconds = f"{one.part.name:<13}", f"{one.seconds:6.1f}"
        found.append((name, seconds, *(f"{cell:>4}" for cell in cells)))
    return found
