"""Whole accelerators with workers of many sizes: the plan of E2bird (sections 6 and 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import Glet, GpuCut, cuts, partitions
from interlace.packing.feasibility import feasible
from interlace.perf.duty import CycleTurn, shortest
from interlace.perf.tables import Tables
from interlace.perf.worker_sizes import naive

#: Rates below this part of what was asked are served: rounding.
_ROUNDING: Final = 1e-6
_HALVINGS: Final = 12
_WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class E2bird:
    """One engine on each accelerator, as in section 8; the busiest models choose first.

    A model gets accelerators of its own, as many as its rate keeps busy. What is left of it goes
    to one that is free, or, when none is, takes turns with others where it fits. ``notes`` say
    which workers N-Ebird keeps for each model: any load up to the largest batch in time.
    """

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible(demand, fleet, tables)
        engines = _Engines(fleet, tables)
        unserved = engines.place(asked.wanted)
        reasons = dict.fromkeys(unserved, "no accelerator has the time or the memory left for it")
        plan = asked.plan(partitions(engines.cuts), unserved, reasons)
        return replace(plan, notes=tuple(engines.workers(one) for one in asked.wanted))


class _Engines:
    """Whole accelerators while models are placed on them."""

    def __init__(self, fleet: Fleet, tables: Tables) -> None:
        self.cuts = cuts(fleet, most=1)
        self._tables = tables

    def place(self, demand: Sequence[Demand]) -> dict[str, float]:
        """Engines for every model; what found none."""
        unserved: dict[str, float] = {}
        for one in sorted(demand, key=lambda d: (-self._engines_wanted(d), d.model)):
            left_rps = one.rate_rps
            while left_rps > one.rate_rps * _ROUNDING:
                placed_rps = self._own(one, left_rps) or self._shared(one, left_rps)
                if not placed_rps:
                    break
                left_rps -= placed_rps
            if left_rps > one.rate_rps * _ROUNDING:
                unserved[one.model] = left_rps
        return unserved

    def workers(self, one: Demand) -> str:
        """N-Ebird's list for the model on a whole accelerator, in words."""
        table = self._turn(one, one.rate_rps).latency_ms
        most = max(batch for batch, run_ms in enumerate(table) if 2 * run_ms <= one.slo_ms)
        sizes = ", ".join(str(size) for size in naive(max(1, most)))
        return f"{one.model}: workers of {sizes} rows"

    def _engines_wanted(self, one: Demand) -> float:
        most_rps = self._tables.saturated_rps(one, _WHOLE)
        return one.rate_rps / most_rps if most_rps > 0 else 0.0

    def _own(self, one: Demand, rate_rps: float) -> float:
        """A free accelerator for as much of the rate as it serves."""
        placed_rps = min(rate_rps, self._tables.saturated_rps(one, _WHOLE))
        if placed_rps <= 0:
            return 0.0
        for cut in self.cuts:
            share = None if cut.glets else cut.share(_WHOLE)
            if share is None:
                continue
            glet = Glet(share)
            if turns := self._joined(cut, glet, one, placed_rps):
                glet.turns = turns
                cut.add(glet)
                return placed_rps
        return 0.0

    def _shared(self, one: Demand, rate_rps: float) -> float:
        """The highest part of the rate that fits beside others on one accelerator."""
        best_rps = 0.0
        best: tuple[Glet, list[CycleTurn]] | None = None
        for cut in (used for used in self.cuts if used.glets):
            glet = cut.glets[0]
            if turns := self._joined(cut, glet, one, rate_rps):
                glet.turns = turns
                return rate_rps
            low_rps, high_rps = best_rps, rate_rps
            for _ in range(_HALVINGS):
                middle_rps = (low_rps + high_rps) / 2
                if turns := self._joined(cut, glet, one, middle_rps):
                    low_rps, best_rps, best = middle_rps, middle_rps, (glet, turns)
                else:
                    high_rps = middle_rps
        if best is None or best_rps < one.rate_rps * _ROUNDING:
            return 0.0
        best[0].turns = best[1]
        return best_rps

    def _joined(
        self, cut: GpuCut, glet: Glet, one: Demand, rate_rps: float
    ) -> list[CycleTurn] | None:
        """The glet's turns with this rate added; ``None`` where memory or time is short."""
        if not cut.holds(glet, one.model, self._tables.profiles):
            return None
        total_rps = glet.rate_rps(one.model) + rate_rps
        turns = [*glet.without(one.model), self._turn(one, total_rps)]
        return turns if shortest(turns) else None

    def _turn(self, one: Demand, rate_rps: float) -> CycleTurn:
        return self._tables.turn(one, rate_rps, _WHOLE)
