"""The time from the end of a GPU's process to its next one, where others can serve meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from interlace.core.messages import Failure

_log = logging.getLogger(__name__)

_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0

OnStarted = Callable[[Failure | None], None]


class Restarter:
    """Reports that an accelerator is away, restarts its process, and reports that it is back.

    ``start`` starts the process and says how that ended. A GPU that does not come back is tried
    again, less and less often.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        start: Callable[[OnStarted], object],
        away: Callable[[], None],
        back: Callable[[], None],
        gpu: str,
    ) -> None:
        self._loop = loop
        self._start = start
        self._away = away
        self._back = back
        self._gpu = gpu
        self._pause_s = _FIRST_S
        self._timer: asyncio.TimerHandle | None = None
        self._gone = False

    def begin(self) -> None:
        """The process is gone."""
        if self._gone:
            return
        self._gone = True
        self._pause_s = _FIRST_S
        self._away()
        self._timer = self._loop.call_later(0.0, self._try)

    def close(self) -> None:
        """Try no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _try(self) -> None:
        try:
            self._start(self._started)
        except OSError as error:
            self._started(Failure(str(error)))

    def _started(self, failure: Failure | None) -> None:
        if failure is None:
            self._gone = False
            self._back()
            return
        text = "%s does not come back: %s; tried again in %g s"
        _log.warning(text, self._gpu, failure.detail, self._pause_s)
        self._timer = self._loop.call_later(self._pause_s, self._try)
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
