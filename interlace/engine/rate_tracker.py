"""Smoothed arrival rates, and whether the mix of work has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: The mix has changed if a model's part of all work is this many times what was planned.
_MOVED: Final = 1.5
#: A tick this much before the end of a period ends it: clocks are not exact.
_EARLY_MS: Final = 100.0


@dataclass(slots=True)
class _Meter:
    rows: int = 0
    rows_per_s: float = 0.0
    seen: bool = False


class RateTracker:
    """Rows per second that each model is asked for, refused ones included.

    A sample is taken every ``period_ms``; ``weight`` is the newest sample's in the smoothed rate.
    """

    def __init__(self, period_ms: float = 1000.0, weight: float = 0.3) -> None:
        self._meters: dict[str, _Meter] = {}
        self._period_ms = period_ms
        self._weight = weight
        self._last_ms = 0.0

    def count(self, model: str, rows: int) -> None:
        """Count one arrival."""
        meter = self._meters.get(model)
        if meter is None:
            meter = self._meters[model] = _Meter()
        meter.rows += rows

    def forget(self, model: str) -> None:
        self._meters.pop(model, None)

    def tick(self, now_ms: float) -> bool:
        """Take a sample if a period is over; true if so."""
        elapsed_ms = max(now_ms - self._last_ms, 1.0)
        if elapsed_ms < self._period_ms - _EARLY_MS:
            return False
        self._last_ms = now_ms
        for meter in self._meters.values():
            rows_per_s = meter.rows / elapsed_ms * 1000.0
            weight = self._weight if meter.seen else 1.0
            meter.rows_per_s += weight * (rows_per_s - meter.rows_per_s)
            meter.seen = meter.seen or meter.rows > 0
            meter.rows = 0
        return True

    def rows_per_s(self, model: str) -> float:
        """The smoothed rate; 0 for a model without requests so far."""
        meter = self._meters.get(model)
        return meter.rows_per_s if meter else 0.0

    def mix_changed(
        self, cost_ms: Mapping[str, float], planned_rows_per_s: Mapping[str, float]
    ) -> bool:
        """True if some model's part of all work is far above what was planned for it.

        ``cost_ms`` is the accelerator time of one row. Parts are compared, not rates: a plan that
        uses the whole fleet need not change when all rates grow alike.
        """
        seen = _parts({m: self.rows_per_s(m) * c for m, c in cost_ms.items()})
        planned = _parts({m: planned_rows_per_s.get(m, 0.0) * c for m, c in cost_ms.items()})
        if not seen or not planned:
            return False
        return any(seen[m] > 0.1 and seen[m] > _MOVED * planned[m] for m in cost_ms)


def _parts(work: Mapping[str, float]) -> dict[str, float]:
    total = sum(work.values())
    return {model: part / total for model, part in work.items()} if total > 0 else {}
