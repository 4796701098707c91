"""Log lines of models' code, on the standard error of their process."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import ClassVar, Final

from interlace.formats.python_backend.errors import text, wrong_type

_log: Final = logging.getLogger("interlace.model")
#: As the server shows its own lines.
_FORMAT: Final = "%(asctime)s %(levelname)-7s %(message)s"


class LogLevel(IntEnum):
    """The level of a line."""

    INFO = logging.INFO
    WARNING = logging.WARNING
    ERROR = logging.ERROR
    VERBOSE = logging.DEBUG


class Logger:
    """Triton's logger. Lines of level VERBOSE are not shown in a worker.

    All its calls raise ``TypeError`` if the message is no text, or the level none of its own.
    """

    INFO: Final = LogLevel.INFO
    WARNING: Final = LogLevel.WARNING
    ERROR: Final = LogLevel.ERROR
    VERBOSE: Final = LogLevel.VERBOSE

    model: ClassVar[str] = ""  #: the model whose code runs

    @classmethod
    def log(cls, message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Log a line at a level of this class."""
        message = text(message, "message")
        if not isinstance(level, LogLevel):
            raise wrong_type("level", "a level of Logger", level)
        if not _log.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(_FORMAT))
            _log.addHandler(handler)
            _log.setLevel(logging.INFO)
            _log.propagate = False
        _log.log(level, "%s: %s", cls.model, message)

    @classmethod
    def log_info(cls, message: str) -> None:
        """Log an information."""
        cls.log(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """Log a warning."""
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """Log an error."""
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Log a detail."""
        cls.log(message, cls.VERBOSE)
