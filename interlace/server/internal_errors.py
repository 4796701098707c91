"""Errors of the server itself: the client gets a short refusal, the log a traceback."""

from __future__ import annotations

import logging
import time
from typing import Final

from interlace.core.errors import Reason, ServeError

_log = logging.getLogger(__name__)

#: Tracebacks written within a minute; the others are counted only, so that no client fills a disk.
TRACEBACKS_MAX: Final = 10
_MINUTE_S: Final = 60.0


class InternalErrors:
    """Turns exceptions into refusals, and writes a bounded number of them down."""

    def __init__(self) -> None:
        self._since_s = float("-inf")
        self._written = 0
        self._left_out = 0

    def refusal(self, error: Exception, what: str) -> ServeError:
        """The refusal of a request that met a fault of the server; ``what`` is for the log."""
        now_s = time.monotonic()
        if now_s - self._since_s > _MINUTE_S:
            if self._left_out:
                _log.error("%d more requests failed, without a traceback", self._left_out)
            self._since_s, self._written, self._left_out = now_s, 0, 0
        if self._written < TRACEBACKS_MAX:
            self._written += 1
            _log.error("%s failed", what, exc_info=error)
        else:
            self._left_out += 1
        return ServeError(Reason.BACKEND, "the server could not handle the request: see its log")
