"""How often a model is asked, of many that are asked seldom: the mean of its own gaps."""

from __future__ import annotations

from typing import Final

#: The part of the newest gap in the mean, once there are many.
_LEAST_WEIGHT: Final = 1 / 32
#: The planned rate counts as so many gaps: it says more than the first few do.
_PLANNED_GAPS: Final = 8
#: A plan for less says nothing, and rates beyond one a microsecond are one burst.
_LEAST_RPS: Final = 1e-9
_LEAST_GAP_MS: Final = 1e-3


class ArrivalRate:
    """The rate of one model, in visits a second: requests within ``visit_ms`` share a cold start.

    The mean of its gaps, each model at its own pace: of the first ones the plain mean, the planned
    rate counted as some of them, later a moving one of about 32. A gap that is still open counts
    once it is longer than the mean, so what is not asked any more is forgotten.
    """

    __slots__ = ("_gap_ms", "_gaps", "_last_ms", "_visit_ms")

    def __init__(self, since_ms: float, planned_rps: float = 0.0, visit_ms: float = 0.0) -> None:
        self._last_ms = since_ms
        self._gaps = _PLANNED_GAPS if planned_rps > _LEAST_RPS else 0
        self._gap_ms = 1000.0 / planned_rps if self._gaps else 0.0
        self._visit_ms = visit_ms

    def arrived(self, now_ms: float) -> None:
        """A request came."""
        gap_ms = now_ms - self._last_ms
        if gap_ms < self._visit_ms:
            return
        self._last_ms = now_ms
        self._gap_ms = self._with(gap_ms)
        self._gaps += 1

    def rps(self, now_ms: float) -> float:
        """Visits a second, as far as is known at that time."""
        if self._gaps == 0:
            return 0.0
        gap_ms = now_ms - self._last_ms
        mean_ms = self._gap_ms if gap_ms <= self._gap_ms else self._with(gap_ms)
        return 1000.0 / max(mean_ms, _LEAST_GAP_MS)

    def sure_rps(self, now_ms: float) -> float:
        """What it is at least, as far as is known: a deviation less, none after one gap."""
        counted = min(self._gaps, 1.0 / _LEAST_WEIGHT)
        return self.rps(now_ms) * (1.0 - counted**-0.5) if counted else 0.0

    def _with(self, gap_ms: float) -> float:
        if self._gaps == 0:
            return gap_ms
        weight = max(_LEAST_WEIGHT, 1.0 / (self._gaps + 1))
        return self._gap_ms + weight * (gap_ms - self._gap_ms)
