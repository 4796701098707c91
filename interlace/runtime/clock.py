"""Time as an object: ``WallClock`` waits, ``SimClock`` jumps."""

from __future__ import annotations

import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # planning and simulation start without it
    import asyncio

Call = Callable[[], None]


class Clock(Protocol):
    """Milliseconds since the clock started, and calls at a time.

    Calls at equal times run in the order they were asked for; no call runs inside ``call_at`` or
    ``call_soon``. ``call_soon`` alone may be used from any thread.
    """

    def now_ms(self) -> float: ...
    def call_at(self, at_ms: float, call: Call) -> None: ...
    def call_soon(self, call: Call) -> None: ...


class WallClock:
    """The running asyncio loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._start_s = time.perf_counter()

    def now_ms(self) -> float:
        return (time.perf_counter() - self._start_s) * 1000.0

    def call_at(self, at_ms: float, call: Call) -> None:
        self._loop.call_later(max(0.0, (at_ms - self.now_ms()) / 1000.0), call)

    def call_soon(self, call: Call) -> None:
        self._loop.call_soon_threadsafe(call)


class SimClock:
    """A heap of calls; ``run`` jumps from one to the next."""

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._heap: list[tuple[float, int, Call]] = []
        self._sequence = count()

    def now_ms(self) -> float:
        return self._now_ms

    def call_at(self, at_ms: float, call: Call) -> None:
        heappush(self._heap, (max(at_ms, self._now_ms), next(self._sequence), call))

    def call_soon(self, call: Call) -> None:
        self.call_at(self._now_ms, call)

    def run(self, until_ms: float = inf) -> None:
        """Make every call due by ``until_ms``, in order; then it is ``until_ms``, if finite."""
        while self._heap and self._heap[0][0] <= until_ms:
            self._now_ms, _, call = heappop(self._heap)
            call()
        if until_ms != inf:
            self._now_ms = max(self._now_ms, until_ms)


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
