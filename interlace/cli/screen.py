"""Tables and text on the terminal, or in a file, where no line is cut short."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from rich import box
from rich.console import Console, RenderableType
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
    """
    found = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = _FILE_WIDTH
    return found


def table(left: Sequence[str], right: Sequence[str], title: str | None = None) -> Table:
    """A table whose first columns hold words and whose last hold figures."""
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for heading in left:
        made.add_column(heading, overflow="fold")
    for heading in right:
        made.add_column(heading, justify="right", no_wrap=True)
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
