"""Log lines of models' code, on the standard error of their process."""

from __future__ import annotations

import logging
from typing import ClassVar, Final

_log: Final = logging.getLogger("interlace.model")
#: As the server shows its own lines.
_FORMAT: Final = "%(asctime)s %(levelname)-7s %(message)s"


class Logger:
    """Triton's logger. Lines of level VERBOSE are not shown in a worker."""

    INFO: Final = logging.INFO
    WARNING: Final = logging.WARNING
    ERROR: Final = logging.ERROR
    VERBOSE: Final = logging.DEBUG

    model: ClassVar[str] = ""  #: the model whose code runs

    @classmethod
    def log(cls, message: object, level: int = logging.INFO) -> None:
        """Log a line at a level of this class."""
        if not _log.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(_FORMAT))
            _log.addHandler(handler)
            _log.setLevel(logging.INFO)
            _log.propagate = False
        _log.log(level, "%s: %s", cls.model, message)

    @classmethod
    def log_info(cls, message: object) -> None:
        """Log an information."""
        cls.log(message, cls.INFO)

    @classmethod
    def log_warn(cls, message: object) -> None:
        """Log a warning."""
        cls.log(message, cls.WARNING)

    @classmethod
    def log_error(cls, message: object) -> None:
        """Log an error."""
        cls.log(message, cls.ERROR)

    @classmethod
    def log_verbose(cls, message: object) -> None:
        """Log a detail."""
        cls.log(message, cls.VERBOSE)
