"""When a new plan is asked for, by looking at rates at the end of each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlace.core.plan import Demand
from interlace.engine.arrival_rates import ArrivalRates
from interlace.engine.plan_diff import settled
from interlace.engine.state import EngineState
from interlace.policy.base import Scaler

#: A plan that has not settled after this long is not waited for.
_STUCK_MS: Final = 60_000.0


class ReplanTrigger:
    """Asks for a plan when rates moved, models came or went, or GPUs asked for did not come.

    Never within the scaler's cool-down. On a fixed fleet only the mix of work matters, since a plan
    uses the whole fleet anyway. On an elastic one, or where accelerators have prices, higher rates
    count after ``resolve_ms`` and lower ones after ``patience_ms``.
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
            return False  # or plans would follow each other and none would ever be in place
        if self._state.served() != self._asked_rows_per_s.keys():
            return True
        if not sampled:
            return False
        if not (self._state.elastic or self._state.priced):
            return self._mix_changed()
        return self._rates_moved(now_ms) or self._waited_too_long(now_ms)

    def _rates_moved(self, now_ms: float) -> bool:
        moves = [
            self._scaler.moved(self._rates.rows_per_s(model), planned_rows_per_s)
            for model, planned_rows_per_s in self._asked_rows_per_s.items()
            if self._rates.rows_per_s(model) > 0.0
        ]
        if any(move > 0 for move in moves):
            return self._lasting(1, self._scaler.resolve_ms, now_ms)
        if any(move < 0 for move in moves):
            return self._lasting(-1, self._scaler.patience_ms, now_ms)
        self._trend = 0
        return False

    def _lasting(self, trend: int, least_ms: float, now_ms: float) -> bool:
        """True if rates have moved that way without a break for ``least_ms``."""
        if trend != self._trend:
            self._trend, self._trend_since_ms = trend, now_ms
        return now_ms - self._trend_since_ms >= least_ms

    def _waited_too_long(self, now_ms: float) -> bool:
        """True if accelerators have been waited for so long that a plan without them is due."""
        since_ms = self._state.short_since_ms
        return since_ms is not None and now_ms - max(since_ms, self._since_ms) >= max(
            self._scaler.patience_ms, self._scaler.period_ms
        )

    def _mix_changed(self) -> bool:
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
        return self._rates.mix_changed(cost_ms, planned_rows_per_s)
