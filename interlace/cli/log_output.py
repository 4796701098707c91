"""Where log messages go: to the screen, one line each, with the time and the level."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Final

from rich.console import Console

_FORMAT: Final = "%(asctime)s %(levelname)-7s %(message)s"
_TIME: Final = "%Y-%m-%d %H:%M:%S"


class LogLevel(StrEnum):
    """The least level that is shown of the package's own messages."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _ConsoleHandler(logging.Handler):
    """Prints above a progress bar that the console may be showing."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


def configure_logging(console: Console, level: LogLevel = LogLevel.INFO) -> None:
    """Show the package's messages from ``level`` on, and warnings of libraries."""
    handler = _ConsoleHandler(console)
    handler.setFormatter(logging.Formatter(_FORMAT, _TIME))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("interlace").setLevel(level.upper())
