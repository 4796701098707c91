"""Rows on a terminal, line by line."""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.gpu.findings import ROWS, RUN, Findings, Found, count
from bench.gpu.parts import Part
from bench.gpu.rows import Row, Verdict

_WIDTH: Final = 110
#: Of a long output often only the end is seen: what went wrong is said there again.
_AGAIN_CHARS: Final = 6000
_ROW_CHARS: Final = 400


class Screen:
    """Shows rows as they come, and a table of all parts at the end."""

    def __init__(self, dry: bool) -> None:
        self._dry = dry

    def part(self, part: Part, seconds: float) -> None:
        """A part begins that is ended after ``seconds``."""
        _say(f"\n{part.name}: {part.tells} (at most {seconds:.0f} s)")

    def row(self, row: Row) -> None:
        """One finding."""
        wanted = f" (expected: {row.expected})" if row.expected else ""
        text = f"{row.verdict.value:>12}  {row.what}: {row.found}{wanted}"
        _say(textwrap.fill(text, _WIDTH, subsequent_indent=" " * 14))

    def ended(self, found: Found) -> None:
        """A part ended, now or before."""
        words = f"took {found.seconds:.1f} s before" if found.resumed else f"{found.seconds:.1f} s"
        _say(f"{'':>14}{words}")

    def left_out(self, part: Part) -> None:
        """There is not enough time for a part."""
        _say(f"\n{part.name}: left out, it needs {part.seconds:.0f} s")

    def cut(self, why: str) -> None:
        """The run ends before its parts do."""
        _say(f"\n{why}: what has been found is kept")

    def summary(self, findings: Findings, bundle: Path) -> None:
        """How each part ended; what failed once more; where the findings lie."""
        _say("")
        heads = ("part", "seconds", *(verdict.value for verdict in Verdict))
        for cells in (heads, *_cells(findings.results)):
            _say("  ".join(f"{cell:{w}}" for cell, w in zip(cells, _columns(heads), strict=True)))
        for line in again(findings):
            _say(line)
        if self._dry:
            _say("A dry run: no GPU was used, and no figure above says anything of one.")
        if findings.missing:
            _say(f"no room in the bundle for: {', '.join(findings.missing)}"[:_ROW_CHARS])
        _say(f"findings: {findings.out}/PART.json, all in one: {bundle}")


def _say(text: str) -> None:
    print(text, flush=True)


def _columns(heads: Sequence[str]) -> list[str]:
    """The first to the left, as wide as a part's name; figures to the right."""
    return ["<13", *(f">{len(head)}" for head in heads[1:])]


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


def _cells(results: Sequence[Found]) -> Iterator[tuple[str, ...]]:
    for one in results:
        counts = [count(one.rows, verdict) for verdict in Verdict]
        yield one.part.name, f"{one.seconds:.1f}", *(str(number or "") for number in counts)
