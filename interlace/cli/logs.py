"""What the package logs, as lines on the terminal."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Final

from rich.console import Console

_FORMAT: Final = "%(asctime)s %(levelname)-7s %(message)s"
_TIME: Final = "%Y-%m-%d %H:%M:%S"


class LogLevel(StrEnum):
    """From which level on the package's own messages are shown."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _ConsoleHandler(logging.Handler):
    """Prints through a console, so that a progress bar stays below the lines."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(logging.Formatter(_FORMAT, _TIME))

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), soft_wrap=True)


def show_logs(console: Console, level: LogLevel = LogLevel.INFO) -> None:
    """Print what is logged from now on, one line each; of libraries only warnings."""
    logging.basicConfig(handlers=[_ConsoleHandler(console)], level=logging.WARNING, force=True)
    logging.getLogger("interlace").setLevel(level.upper())
