"""Arrival rates, smoothed, and when they have moved enough to ask for a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_WEIGHT = 0.3  #: of the newest epoch in the smoothed rate
_COOL_DOWN_EPOCHS = 10  #: a plan is given this long to show what it does
_MOVED = 1.5  #: factor between the planned and the seen share of all work that counts as a move


@dataclass(slots=True)
class _Meter:
    rows: int = 0
    rate_rps: float = 0.0
    seen: bool = False


class Rates:
    """Rows per second asked of each model, refused ones included."""

    def __init__(self) -> None:
        self._meters: dict[str, _Meter] = {}
        self._last_ms = 0.0
        self._quiet_epochs = 0

    def count(self, model: str, rows: int) -> None:
        """Enter one arrival."""
        meter = self._meters.get(model)
        if meter is None:
            meter = self._meters[model] = _Meter()
        meter.rows += rows

    def forget(self, model: str) -> None:
        self._meters.pop(model, None)

    def tick(self, now_ms: float) -> None:
        """Close an epoch."""
        elapsed_s = max(now_ms - self._last_ms, 1.0) / 1000.0
        self._last_ms = now_ms
        self._quiet_epochs += 1
        for meter in self._meters.values():
            rate_rps = meter.rows / elapsed_s
            weight = _WEIGHT if meter.seen else 1.0
            meter.rate_rps += weight * (rate_rps - meter.rate_rps)
            meter.seen = meter.seen or meter.rows > 0
            meter.rows = 0

    def rate_rps(self, model: str) -> float:
        """The smoothed rate; 0 for a model that was never asked."""
        meter = self._meters.get(model)
        return meter.rate_rps if meter else 0.0

    def planned(self) -> None:
        """A plan was made just now."""
        self._quiet_epochs = 0

    def moved(self, cost_ms: Mapping[str, float], planned_rps: Mapping[str, float]) -> bool:
        """True when some model's part of all the work is far from what was planned for it.

        ``cost_ms`` is the accelerator time of one row. Parts are compared rather than rates: a
        plan that uses the whole fleet need not change when everything grows alike.
        """
        if self._quiet_epochs < _COOL_DOWN_EPOCHS:
            return False
        seen = _parts({m: self.rate_rps(m) * c for m, c in cost_ms.items()})
        planned = _parts({m: planned_rps.get(m, 0.0) * c for m, c in cost_ms.items()})
        if not seen or not planned:
            return False
        return any(seen[m] > 0.1 and seen[m] > _MOVED * planned[m] for m in cost_ms)


def _parts(work: Mapping[str, float]) -> dict[str, float]:
    total = sum(work.values())
    return {model: part / total for model, part in work.items()} if total > 0 else {}
