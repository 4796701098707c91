"""Whether a model's code says that it is ready (``is_ready``), asked beside ``execute``."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from threading import Event, Thread
from typing import Any, Final

from interlace.formats.python_backend.logger import Logger

_EVERY_S: Final = 0.5
#: How long the first answer is waited for, as Triton does for each.
_FIRST_S: Final = 5.0


class Readiness:
    """Asks in a thread of its own, until it is closed."""

    def __init__(self, ask: Callable[[], Any], changed: Callable[[bool], None]) -> None:
        """``changed`` is called with each answer that differs from the last; at first it is ready.

        Returns after the first answer.
        """
        self._ask = ask
        self._changed = changed
        self._failed = False
        self._asked, self._over = Event(), Event()
        Thread(target=self._watch, name="is_ready", daemon=True).start()
        self._asked.wait(_FIRST_S)

    def close(self) -> None:
        """Ask no more."""
        self._over.set()

    def _watch(self) -> None:
        ready = True
        while not self._over.is_set():
            if (said := self._answer()) != ready:
                ready = said
                self._changed(ready)
            self._asked.set()
            self._over.wait(_EVERY_S)

    def _answer(self) -> bool:
        """What the code says; ``False`` if it fails, or says something else."""
        try:
            said = self._ask()
            if inspect.iscoroutine(said):
                said = asyncio.run(said)
            if not isinstance(said, bool):
                raise TypeError(f"expected a bool, found {type(said).__name__}")
        except Exception as error:
            if not self._failed:
                Logger.log_error(f"is_ready failed: {type(error).__name__}: {error}")
            self._failed, said = True, False
        return said
