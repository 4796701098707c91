"""What the package logs, as lines on the terminal."""

from __future__ import annotations

import logging

from rich.console import Console


class _ConsoleHandler(logging.Handler):
    """Prints through a console, so that a progress bar stays below the lines."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), soft_wrap=True)


def show_logs(console: Console, level: int = logging.INFO) -> None:
    """Print what is logged from now on, each line with its date and time."""
    logging.basicConfig(handlers=[_ConsoleHandler(console)], level=logging.WARNING, force=True)
    logging.getLogger("interlace").setLevel(level)
