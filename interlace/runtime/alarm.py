"""One time of many: the earliest that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from interlace.runtime.clock import Clock


class Alarm:
    """Calls ``ring`` at the earliest time asked for; later ones are asked for again by then."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._at_ms = inf

    def at(self, at_ms: float) -> None:
        """Ask for a time."""
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
