"""The time of one node among many: it may stand still, or end."""

from __future__ import annotations

from interlace.runtime.clock import Call, Clock


class NodeClock:
    """A ``Clock`` whose calls wait while the node hangs, and are dropped once it has ended.

    What it says that it is goes on meanwhile, as a machine's clock does.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: list[Call] = []
        self._stopped = False
        self._ended = False

    def now_ms(self) -> float:
        return self._clock.now_ms()

    def call_at(self, at_ms: float, call: Call) -> None:
        self._clock.call_at(at_ms, lambda: self._due(call))

    def call_soon(self, call: Call) -> None:
        self._clock.call_soon(lambda: self._due(call))

    def stop(self) -> None:
        """Make no call until ``go_on``."""
        self._stopped = True

    def go_on(self) -> None:
        """Make the calls that have waited, in order."""
        self._stopped = False
        held, self._held = self._held, []
        for call in held:
            self.call_soon(call)

    def end(self) -> None:
        """Make no call any more."""
        self._ended = True
        self._held = []

    def _due(self, call: Call) -> None:
        if self._ended:
            return
        if self._stopped:
            self._held.append(call)
        else:
            call()
