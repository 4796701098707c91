"""Tables and text on the terminal, or in a file, where no line is cut short."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table

_FORMAT: Final = "%(asctime)s %(levelname)-7s "
_TIME: Final = "%Y-%m-%d %H:%M:%S"


class LogLevel(StrEnum):
    """From which level on the package's own messages are shown."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _ConsoleHandler(logging.Handler):
    """Prints through a console, so that a progress bar stays below the lines."""

    def __init__(self, console: Console, who: str) -> None:
        super().__init__()
        self._console = console
        by = f"{who}: ".replace("%", "%%") if who else ""
        self.setFormatter(logging.Formatter(f"{_FORMAT}{by}%(message)s", _TIME))

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), soft_wrap=True)


def show_logs(console: Console, level: LogLevel = LogLevel.INFO, who: str = "") -> None:
    """Print what is logged from now on, one line each; of libraries only warnings.

    ``who`` is named in each, where several processes print to one terminal.
    """
    logging.basicConfig(handlers=[_ConsoleHandler(console, who)], level=logging.WARNING, force=True)
    logging.getLogger("interlace").setLevel(level.upper())


_FILE_WIDTH = 180


def console(stderr: bool = False) -> Console:
    """The terminal at its own width; anything else wide enough for every table.

    Square brackets and colons are text, not markup: shapes, paths and rates are full of them.
    With ``NO_COLOR`` nothing is styled, bold headings included.
    """
    found = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if found.no_color:
        found = Console(
            stderr=stderr, highlight=False, markup=False, emoji=False, color_system=None
        )
    if not found.is_terminal:
        found.width = _FILE_WIDTH
    return found


#: Prose in a table wraps at this width before figures fold.
_PROSE_WIDTH: Final = 20


class FoldingTable(Table):
    """Words in the columns to the ``left``, figures to the ``right``.

    Figures move to further lines of a row where the terminal is narrow. Columns of words identify
    a row and never shrink, except those of ``prose``, which wrap.
    """

    def __init__(
        self,
        left: Sequence[str],
        right: Sequence[str],
        title: str | None = None,
        prose: Sequence[str] = (),
    ) -> None:
        super().__init__(
            box=box.SIMPLE_HEAD,
            title=title,
            title_justify="left",
            pad_edge=False,
            padding=(0, 1, 0, 1),
        )
        self._left, self._prose = len(left), frozenset(prose)
        for heading in left:
            self.add_column(heading, overflow="fold", no_wrap=heading.rstrip() not in self._prose)
        for heading in right:
            self.add_column(heading, justify="right", no_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        figures = len(self.columns) - self._left
        for padding in ((0, 1, 0, 1), (0, 1, 0, 0)):
            self.padding = padding
            if self._width(self._texts()) <= options.max_width:
                yield from super().__rich_console__(console, options)
                return
        for across in range(figures - 1, 0, -1):
            folded = self._folded(across)
            if across == 1 or self._width(folded) <= options.max_width:
                yield from self._made(folded).lines(console, options)
                return
        yield from super().__rich_console__(console, options)

    def lines(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table as it is, whatever the width."""
        return super().__rich_console__(console, options)

    def _texts(self) -> list[list[str]]:
        """Columns of texts, the heading first."""
        return [[str(one.header), *map(str, one._cells)] for one in self.columns]

    def _width(self, columns: Sequence[Sequence[str]]) -> int:
        """How many characters the columns take, prose wrapped."""
        gap, total = sum((self.padding[1], self.padding[3])) + 1, 1
        for cells in columns:
            widest = max(cell_len(line) for text in cells for line in text.split("\n"))
            total += gap + (
                min(widest, _PROSE_WIDTH) if cells[0].rstrip() in self._prose else widest
            )
        return total - gap + 1

    def _folded(self, across: int) -> list[list[str]]:
        """Columns with ``across`` of figures, the others in further lines of each cell."""
        columns = self._texts()
        left, figures = columns[: self._left], columns[self._left :]
        stacks = [figures[first::across] for first in range(across)]
        folded = [["\n".join(texts) for texts in zip(*one, strict=True)] for one in stacks]
        lines = -(-len(figures) // across)
        for cells in (columns := left + folded):
            cells[0] += "\n" * (lines - 1 - cells[0].count("\n"))  # else it sinks to the last
            cells[1:] = [text.rstrip("\n") for text in cells[1:]]
        return columns

    def _made(self, columns: Sequence[Sequence[str]]) -> FoldingTable:
        headings = [cells[0] for cells in columns]
        made = FoldingTable(
            headings[: self._left], headings[self._left :], str(self.title or "") or None,
            tuple(self._prose),
        )  # fmt: skip
        made.padding = self.padding
        for number, cells in enumerate(zip(*(one[1:] for one in columns), strict=True)):
            made.add_row(*cells, end_section=self.rows[number].end_section)
        return made


def watch(out: Console, look: Callable[[], RenderableType], interval_s: float, once: bool) -> None:
    """Show a frame each ``interval_s`` until Ctrl-C; or, ``once``, print one after that time."""
    if once:
        time.sleep(interval_s)
        out.print(look())
        return
    with Live(console=out, auto_refresh=False, screen=out.is_terminal) as live:
        while True:
            time.sleep(interval_s)
            live.update(look(), refresh=True)
