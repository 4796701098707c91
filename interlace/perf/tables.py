"""Latency tables and saturated rates of every model at every share, made when first asked for."""

from __future__ import annotations

from collections.abc import Sequence

from interlace.core.plan import Demand
from interlace.core.profile import Profiles
from interlace.perf.duty import CycleTurn
from interlace.perf.latency import Surface, surface


class Tables:
    """What a planner asks of profiles again and again, kept for the length of one plan.

    Batches stop at the largest that was measured at a share: beyond it nothing is known.
    """

    def __init__(self, profiles: Profiles) -> None:
        self.profiles = profiles
        self._surfaces: dict[str, Surface] = {}
        self._latency_ms: dict[tuple[str, int], tuple[float, ...]] = {}
        self._saturated: dict[tuple[str, int], float] = {}

    def surface(self, model: str) -> Surface:
        """The model's latency surface."""
        if model not in self._surfaces:
            self._surfaces[model] = surface(self.profiles[model])
        return self._surfaces[model]

    def turn(self, one: Demand, rows_per_s: float, share_pct: int) -> CycleTurn:
        """The model at that rate in an undisturbed partition; without a batch if unknown there.

        A share below the smallest measured one, like an impossible one, fits no cycle.
        """
        key = (one.model, share_pct)
        if key not in self._latency_ms:
            self._latency_ms[key] = self._table(one, share_pct)
        return CycleTurn(one.model, rows_per_s, one.slo_ms, self._latency_ms[key])

    def saturated_rows_per_s(self, one: Demand, share_pct: int) -> float:
        """The highest rate that the share serves of the model alone: 2 L(b) <= SLO; 0 if none.

        A lone model is served exactly if its rate is at most this (``duty.shortest``), and in any
        cycle it takes at least rate / saturated of the time. Latency is linear between measured
        batches, so only those and the largest in time need be looked at.
        """
        key = (one.model, share_pct)
        if key not in self._saturated:
            self._saturated[key] = self._highest(one, share_pct)
        return self._saturated[key]

    def efficient_pct(self, one: Demand, shares: Sequence[int]) -> int | None:
        """p_eff of gpulet: the knee of the affordable rate over the share; ``None`` if no share.

        The paper (section 4.3, Figure 9) draws the knee and gives no formula. Here it is the share
        whose rate lies furthest above the line from zero to the largest share; the smaller one of
        two equals.
        """
        rates = {share: self.saturated_rows_per_s(one, share) for share in sorted(shares)}
        usable = [share for share, rate in rates.items() if rate > 0]
        if not usable:
            return None
        last = usable[-1]
        return max(usable, key=lambda s: (round(rates[s] / rates[last] - s / last, 9), -s))

    def required_pct(self, one: Demand, rows_per_s: float, shares: Sequence[int]) -> int | None:
        """p_req of gpulet: the smallest share that serves the whole rate alone, if any."""
        for share in sorted(shares):
            if 0 < self.saturated_rows_per_s(one, share) >= rows_per_s * (1 - 1e-12):
                return share
        return None

    def _table(self, one: Demand, share_pct: int) -> tuple[float, ...]:
        latency = self.surface(one.model)
        if share_pct < latency.shares_pct[0]:
            return (0.0,)
        measured = latency.measured_rows(share_pct)
        return latency.table(share_pct, max(0, min(one.max_batch, measured)))

    def _highest(self, one: Demand, share_pct: int) -> float:
        latency = self.surface(one.model)
        if share_pct < latency.shares_pct[0]:
            return 0.0
        curve, limit_ms = latency.at_share(share_pct), one.slo_ms / 2.0
        most = min(one.max_batch, latency.measured_rows(share_pct))
        best_rows_per_s, before, before_ms = 0.0, 0, 0.0
        for batch, run_ms in curve:
            if batch <= most and run_ms <= limit_ms:
                best_rows_per_s = max(best_rows_per_s, 1000.0 * batch / run_ms)
                before, before_ms = batch, run_ms
                continue
            largest = _between(before, before_ms, batch, run_ms, limit_ms)
            last = min(largest, most)
            if last > before:
                best_rows_per_s = max(
                    best_rows_per_s, 1000.0 * last / latency.latency_ms(last, share_pct)
                )
            break
        return best_rows_per_s


def _between(before: int, before_ms: float, batch: int, run_ms: float, limit_ms: float) -> int:
    """The largest batch below ``batch`` within the limit, on the line from ``before``."""
    if before == 0:
        return batch - 1 if run_ms <= limit_ms else 0
    if run_ms <= limit_ms:
        return batch - 1
    part = (limit_ms - before_ms) / (run_ms - before_ms)
    return min(batch - 1, before + int((batch - before) * part + 1e-9))
