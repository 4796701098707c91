"""Exhaustive search for small fleets: what a scheduler could do with these profiles."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import partitions
from interlace.packing.exhaustive import BestCut, ExhaustiveSearch, Group, groups
from interlace.packing.feasibility import feasible
from interlace.perf.tables import Tables


@dataclass(frozen=True, slots=True)
class Ideal:
    """The fewest accelerators that serve every rate in duty cycles (gpulet section 3.2 and 5.2).

    gpulet's own ideal tries every layout with its greedy placement; this one tries every filling
    of the partitions too (``packing.exhaustive`` says which). Interference is left out. After
    ``steps`` duty cycles and partial plans it stops with the best it met, and more than ``models``
    it does not begin with: it says so in its notes and reasons.
    """

    frugal: ClassVar[bool] = True  #: the same plan for every fleet that is large enough
    steps: int = 20_000
    models: int = 128

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible(demand, fleet, tables)
        if not asked.wanted:
            return asked.plan((), {}, {})
        if len(asked.wanted) > self.models:
            why = f"exhaustive search: {len(asked.wanted)} models, it tries at most {self.models}"
            left = {one.model: one.rows_per_s for one in asked.wanted}
            return replace(asked.plan((), left, dict.fromkeys(left, why)), notes=(why,))
        search = ExhaustiveSearch(asked.wanted, tables, self.steps)

        def first(count: int) -> tuple[Group, ...]:
            return groups(fleet.gpus[:count], asked.wanted, tables)

        most, best = len(fleet.gpus), BestCut()
        # With fewer not even the relaxation holds: it grows with the number of accelerators.
        least = 1 + bisect_left(range(1, most), True, key=lambda n: search.possible(first(n)))
        for count in range(least, most + 1):
            best = search.search(first(count))
            if best.complete:
                break
        plan = asked.plan(partitions(best.cuts), *_left(asked.wanted, best, search.exhausted))
        return replace(plan, notes=(self._said(search.exhausted),))

    def _said(self, exhausted: bool) -> str:
        if exhausted:
            return "exhaustive search: every way to split models, but in rings, was tried"
        return f"exhaustive search: stopped at its limit of {self.steps} steps"


def _left(
    demand: Sequence[Demand], best: BestCut, exhausted: bool
) -> tuple[dict[str, float], dict[str, str]]:
    left = {d.model: rate for d, rate in zip(demand, best.left_rows_per_s, strict=True) if rate > 0}
    why = "no way to cut and fill the accelerators serves it beside the others"
    if not exhausted:
        why = "no way was found before the search reached its limit"
    return left, dict.fromkeys(left, why)
