"""How many machines a fleet should have, by how much of what they can serve is asked for."""

from __future__ import annotations

from math import ceil, inf
from typing import Final

#: The part of what accelerators can serve that a fleet is sized for.
TARGET_LOAD: Final = 0.7
#: Above that it is short of them.
HIGH_LOAD: Final = 0.8


class MachineScaling:
    """Grows as soon as the load has been high for a moment, shrinks after it was low for long.

    Above ``HIGH_LOAD`` a fleet grows by as many machines as it takes to reach ``TARGET_LOAD``. It
    shrinks by one machine if the others then stay below ``TARGET_LOAD``. So changes end under a
    constant load (Kubernetes' HorizontalPodAutoscaler, with a gap between both thresholds).
    """

    def __init__(
        self,
        most: int,
        grow_after_ms: float = 15_000.0,
        shrink_after_ms: float = 60_000.0,
    ) -> None:
        """At most so many machines, and one at least."""
        self._most = most
        self._grow_after_ms, self._shrink_after_ms = grow_after_ms, shrink_after_ms
        self._high_since_ms = self._low_since_ms = inf

    def short(self, load: float) -> bool:
        """Whether a fleet at this load has too few machines."""
        return load > HIGH_LOAD

    def wanted(self, load: float, machines: int, now_ms: float) -> int:
        """Machines to have from now on, where ``machines`` serve at a ``load`` of 1 if full."""
        fit = max(1, min(ceil(machines * load / TARGET_LOAD - 1e-9), self._most))
        grows = self.short(load) and fit > machines
        self._high_since_ms = min(self._high_since_ms, now_ms) if grows else inf
        self._low_since_ms = min(self._low_since_ms, now_ms) if fit < machines else inf
        if now_ms - self._high_since_ms >= self._grow_after_ms:
            return fit
        if now_ms - self._low_since_ms >= self._shrink_after_ms:
            self._low_since_ms = inf
            return machines - 1
        return machines
