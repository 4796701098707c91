"""When a new plan is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.core.plan import Demand
from interlace.engine.arrival_rates import ArrivalRates
from interlace.engine.plan_diff import settled
from interlace.engine.state import EngineState
from interlace.policy.base import Scaler

#: A plan that does not stand after this long is not waited for.
_STUCK_MS: Final = 60_000.0


class ReplanTrigger:
    """Rates moved, models came or went, accelerators did not come: not more often than allowed.

    On a fleet that stays, only the parts of all work matter, for the plan uses all of it anyway.
    Where accelerators can be had and given back, more is asked for soon and less with patience.
    """

    def __init__(self, state: EngineState, rates: ArrivalRates, scaler: Scaler) -> None:
        self._state = state
        self._rates = rates
        self._scaler = scaler
        self._asked_rows_per_s: dict[str, float] = {}
        self._since_ms = float("-inf")
        self._trend = 0
        self._trend_since_ms = 0.0

    def asked(self, demand: Sequence[Demand]) -> None:
        """A plan for this demand is being made."""
        self._asked_rows_per_s = {one.model: one.rows_per_s for one in demand}
        self._trend = 0

    def planned(self, now_ms: float) -> None:
        """A plan was made just now."""
        self._since_ms = now_ms

    def due(self, now_ms: float) -> bool:
        """Close an epoch; true if a plan should be asked for."""
        sampled = self._rates.tick(now_ms)
        since_ms = now_ms - self._since_ms
        if since_ms < self._scaler.cool_down_ms:
            return False
        if since_ms < _STUCK_MS and not settled(self._state.partitions, self._state.target):
            return False  # a plan that never stands before the next serves nobody
        if self._state.served() != self._asked_rows_per_s.keys():
            return True
        if not sampled:
            return False
        if not self._state.elastic:
            return self._parts_moved()
        return self._rates_moved(now_ms) or self._tired(now_ms)

    def _rates_moved(self, now_ms: float) -> bool:
        moves = [
            self._scaler.moved(self._rates.rows_per_s(model), planned_rows_per_s)
            for model, planned_rows_per_s in self._asked_rows_per_s.items()
            if self._rates.rows_per_s(model) > 0.0
        ]
        if any(move > 0 for move in moves):
            return self._for_as_long(1, self._scaler.resolve_ms, now_ms)
        if any(move < 0 for move in moves):
            return self._for_as_long(-1, self._scaler.patience_ms, now_ms)
        self._trend = 0
        return False

    def _for_as_long(self, trend: int, least_ms: float, now_ms: float) -> bool:
        """True if rates have moved that way all the time for so long."""
        if trend != self._trend:
            self._trend, self._trend_since_ms = trend, now_ms
        return now_ms - self._trend_since_ms >= least_ms

    def _tired(self, now_ms: float) -> bool:
        """True if accelerators have been waited for long enough to do without."""
        since_ms = self._state.short_since_ms
        return since_ms is not None and now_ms - max(since_ms, self._since_ms) >= max(
            self._scaler.patience_ms, self._scaler.period_ms
        )

    def _parts_moved(self) -> bool:
        planned_rows_per_s: dict[str, float] = {}
        for partition in self._state.target.partitions:
            for slot in partition.slots:
                planned_rows_per_s[slot.model] = (
                    planned_rows_per_s.get(slot.model, 0.0) + slot.rows_per_s
                )
        cost_ms = {
            name: deployed.estimator.latency_ms(1, 100)
            for name, deployed in self._state.models.items()
            if deployed.quarantine_reason is None
        }
        return self._rates.parts_moved(cost_ms, planned_rows_per_s)
