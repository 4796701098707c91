"""One timer for many requested times: it goes off at the earliest."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from interlace.runtime.clock import Clock


class Alarm:
    """Calls ``ring`` at the earliest requested time; later times must be requested again then."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._at_ms = inf

    def at(self, at_ms: float) -> None:
        """Request a time."""
        if self._at_ms <= at_ms:
            return
        self._at_ms = at_ms
        self._clock.call_at(at_ms, lambda: self._due(at_ms))

    def _due(self, at_ms: float) -> None:
        if self._clock.now_ms() < at_ms:  # event loops round times, and may be early
            self._clock.call_at(at_ms, lambda: self._due(at_ms))
            return
        if at_ms == self._at_ms:
            self._at_ms = inf
        self._ring()
