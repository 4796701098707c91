"""Squishy bin packing: the planner of Nexus (SOSP 2019, Algorithm 1; gpulet section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import Glet, GpuCut, cuts, partitions
from interlace.packing.feasibility import feasible
from interlace.perf.duty import CycleTurn, DutyCycle
from interlace.perf.tables import Tables

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Nexus:
    """Saturated loads get bins of their own, residual loads are merged pair by pair.

    A bin is an uncut accelerator, or one of ``parts`` even parts of it (gpulet section 3.2). A
    residual load of rate r runs the largest b that gathers in time: L(b) + (b - 1) / r <= SLO.
    Its cycle is min(SLO - L(b), b / r), as in the published code. Merged loads keep the shorter
    cycle, with b_i = ceil(duty * r_i), and each load joins the bin that it makes fullest.
    """

    parts: int = 1

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible(demand, fleet, tables)
        packing = _Packing(fleet, tables, self.parts)
        residual = [(one, packing.saturate(one)) for one in asked.wanted]
        left = [(one, rate) for one, rate in residual if rate > one.rows_per_s * _ROUNDING]
        unserved = packing.pack(left)
        reasons = dict.fromkeys(unserved, "no bin has the time or the memory left for it")
        return asked.plan(partitions(packing.cuts), unserved, reasons)


class _Packing:
    """Bins while they are filled, in the fleet's order."""

    def __init__(self, fleet: Fleet, tables: Tables, parts: int) -> None:
        self._tables = tables
        self.cuts = cuts(fleet)
        self._empty = [(cut, share) for cut in self.cuts for share in _even(cut.gpu, parts)]
        self._bins: list[tuple[GpuCut, Glet]] = []

    def saturate(self, one: Demand) -> float:
        """Whole bins for as much of the rate as keeps them busy; the residual rate."""
        left_rows_per_s = one.rows_per_s
        for cut, share_pct in list(self._empty):
            most_rows_per_s = self._tables.saturated_rows_per_s(one, share_pct)
            if most_rows_per_s <= 0 or left_rows_per_s < most_rows_per_s * (1 - _ROUNDING):
                continue
            turn = self._tables.turn(one, min(left_rows_per_s, most_rows_per_s), share_pct)
            if self._open(cut, Glet(share_pct, [turn], _alone(turn))):
                left_rows_per_s -= turn.rows_per_s
        return max(left_rows_per_s, 0.0)

    def pack(self, residual: Sequence[tuple[Demand, float]]) -> dict[str, float]:
        """Residual loads by occupancy, the fullest first; what found no bin."""
        unserved: dict[str, float] = {}
        for one, rows_per_s in sorted(residual, key=self._emptiness):
            if not (self._join(one, rows_per_s) or self._open_for(one, rows_per_s)):
                unserved[one.model] = rows_per_s
        return unserved

    def _emptiness(self, load: tuple[Demand, float]) -> tuple[float, str]:
        one, rows_per_s = load
        cycle = _alone(self._tables.turn(one, rows_per_s, 100))
        return -(cycle.occupancy if cycle else 1.0), one.model

    def _join(self, one: Demand, rows_per_s: float) -> bool:
        best: tuple[float, Glet, list[CycleTurn], DutyCycle] | None = None
        for cut, glet in self._bins:
            if one.model in glet.models:
                continue
            turns = [*glet.turns, self._tables.turn(one, rows_per_s, glet.share_pct)]
            cycle = _merged(glet, turns)
            if cycle is None or (best and cycle.occupancy <= best[0]):
                continue
            if cut.holds(glet, one.model, self._tables.profiles):
                best = cycle.occupancy, glet, turns, cycle
        if best is None:
            return False
        _, glet, glet.turns, glet.cycle = best
        return True

    def _open_for(self, one: Demand, rows_per_s: float) -> bool:
        for cut, share_pct in list(self._empty):
            turn = self._tables.turn(one, rows_per_s, share_pct)
            cycle = _alone(turn)
            if cycle and self._open(cut, Glet(share_pct, [turn], cycle)):
                return True
        return False

    def _open(self, cut: GpuCut, glet: Glet) -> bool:
        model = glet.turns[0].model
        if not cut.holds(Glet(glet.share_pct), model, self._tables.profiles):
            return False
        cut.add(glet)
        self._bins.append((cut, glet))
        self._empty.remove((cut, glet.share_pct))
        return True


def _even(gpu: Gpu, parts: int) -> list[int]:
    """The largest share that fits ``parts`` times side by side, that many times."""
    for share in reversed(gpu.shares_pct):
        if gpu.legal([share] * parts):
            return [share] * parts
    return []


def _alone(turn: CycleTurn) -> DutyCycle | None:
    """A residual or saturated load in a bin of its own, if its rate is at most the saturated one.

    The first row of b waits for b - 1 more, any other for a cycle at most.
    """
    for batch in range(turn.max_batch, 0, -1):
        run_ms, row_ms = turn.latency_ms[batch], 1000.0 / turn.rows_per_s
        last_ms = (turn.slo_ms - run_ms) * (1 + _ROUNDING)
        duty_ms = min(last_ms, batch * row_ms)
        if (batch - 1) * row_ms <= last_ms and run_ms <= duty_ms * (1 + _ROUNDING):
            return DutyCycle(duty_ms, (batch,), run_ms)
    return None


def _merged(glet: Glet, turns: Sequence[CycleTurn]) -> DutyCycle | None:
    """The shorter of the two cycles, if it takes all turns in time."""
    own = _alone(turns[-1])
    if own is None or glet.cycle is None:
        return None
    duty_ms = min(own.duty_ms, glet.cycle.duty_ms)
    batches = tuple(turn.batch(duty_ms) for turn in turns)
    if any(b > turn.max_batch for b, turn in zip(batches, turns, strict=True)):
        return None
    runs_ms = [turn.latency_ms[b] for b, turn in zip(batches, turns, strict=True)]
    busy_ms, last_ms = sum(runs_ms), duty_ms * (1 + _ROUNDING)
    late = any(
        duty_ms + ms > t.slo_ms * (1 + _ROUNDING) for ms, t in zip(runs_ms, turns, strict=True)
    )
    return None if late or busy_ms > last_ms else DutyCycle(duty_ms, batches, busy_ms)
