"""Whole accelerators with workers of many sizes: the plan of E2bird (sections 6 and 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import Glet, GpuCut, cuts, largest_part, partitions
from interlace.packing.feasibility import feasible
from interlace.perf.duty import CycleTurn, shortest
from interlace.perf.tables import Tables
from interlace.perf.worker_sizes import naive

#: Rates below this part of what was asked are served: rounding.
_ROUNDING: Final = 1e-6
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
            left_rows_per_s = one.rows_per_s
            while left_rows_per_s > one.rows_per_s * _ROUNDING:
                placed_rows_per_s = self._own(one, left_rows_per_s) or self._shared(
                    one, left_rows_per_s
                )
                if not placed_rows_per_s:
                    break
                left_rows_per_s -= placed_rows_per_s
            if left_rows_per_s > one.rows_per_s * _ROUNDING:
                unserved[one.model] = left_rows_per_s
        return unserved

    def workers(self, one: Demand) -> str:
        """N-Ebird's list for the model on a whole accelerator, as a note."""
        table = self._turn(one, one.rows_per_s).latency_ms
        most = max(batch for batch, run_ms in enumerate(table) if 2 * run_ms <= one.slo_ms)
        sizes = ", ".join(str(size) for size in naive(max(1, most)))
        return f"{one.model}: workers of {sizes} rows"

    def _engines_wanted(self, one: Demand) -> float:
        most_rows_per_s = self._tables.saturated_rows_per_s(one, _WHOLE)
        return one.rows_per_s / most_rows_per_s if most_rows_per_s > 0 else 0.0

    def _own(self, one: Demand, rows_per_s: float) -> float:
        """A free accelerator for as much of the rate as it serves."""
        placed_rows_per_s = min(rows_per_s, self._tables.saturated_rows_per_s(one, _WHOLE))
        if placed_rows_per_s <= 0:
            return 0.0
        for cut in self.cuts:
            share = None if cut.glets else cut.share(_WHOLE)
            if share is None:
                continue
            glet = Glet(share)
            if turns := self._joined(one, cut, glet, placed_rows_per_s):
                glet.turns = turns
                cut.add(glet)
                return placed_rows_per_s
        return 0.0

    def _shared(self, one: Demand, rows_per_s: float) -> float:
        """The highest part of the rate that fits beside others on one accelerator."""
        used = [(cut, cut.glets[0]) for cut in self.cuts if cut.glets]
        for cut, glet in used:
            if turns := self._joined(one, cut, glet, rows_per_s):
                glet.turns = turns
                return rows_per_s
        least = one.rows_per_s * _ROUNDING
        return largest_part(used, partial(self._joined, one), rows_per_s, least)

    def _joined(
        self, one: Demand, cut: GpuCut, glet: Glet, rows_per_s: float
    ) -> list[CycleTurn] | None:
        """The glet's turns with this rate added; ``None`` where memory or time is short."""
        if not cut.holds(glet, one.model, self._tables.profiles):
            return None
        total_rows_per_s = glet.rows_per_s(one.model) + rows_per_s
        turns = [*glet.without(one.model), self._turn(one, total_rows_per_s)]
        return turns if shortest(turns) else None

    def _turn(self, one: Demand, rows_per_s: float) -> CycleTurn:
        return self._tables.turn(one, rows_per_s, _WHOLE)
