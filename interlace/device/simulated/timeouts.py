"""What runs against its limit: one call for all, since few batches come near theirs."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from interlace.device.simulated.running_batches import Timer


class RunTimeouts:
    """When what runs in each partition exceeds its limit; ``late`` is called with the partition."""

    def __init__(self, timer: Timer, late: Callable[[str], None]) -> None:
        self._timer = timer
        self._late = late
        self._due_ms: dict[str, float] = {}
        self._look_ms = inf

    def begin(self, partition: str, limit_ms: float) -> None:
        """Something began there that may take so long."""
        due_ms = self._due_ms[partition] = self._timer.now_ms() + limit_ms
        self._look_at(due_ms)

    def end(self, partition: str) -> None:
        """Nothing runs there any more."""
        self._due_ms.pop(partition, None)

    def clear(self) -> None:
        self._due_ms.clear()

    def _look_at(self, at_ms: float) -> None:
        if at_ms < self._look_ms:
            self._look_ms = at_ms
            self._timer.call_at(at_ms, lambda: self._look(at_ms))

    def _look(self, at_ms: float) -> None:
        if at_ms != self._look_ms:
            return  # an earlier one was asked for since, and looked after this
        self._look_ms = inf
        for name in [name for name, due_ms in self._due_ms.items() if due_ms <= at_ms]:
            self._late(name)
        self._look_at(min(self._due_ms.values(), default=inf))
