"""Knee-sized partitions with models taking turns in them: the plan of D-STACK (section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import Glet, GpuCut, cuts, largest_part, partitions
from interlace.packing.feasibility import feasible
from interlace.perf.duty import CycleTurn, saturated_rows_per_s, shortest
from interlace.perf.sizing import Size, Sizing
from interlace.perf.tables import Tables

#: Rates below this part of what was asked are served: rounding.
_ROUNDING: Final = 1e-6
#: A part of a model's rate below this is not worth an instance.
_WORTH: Final = 0.01
_FIVE_PERCENT: Final = Sizing(over_provision_pct=5)


@dataclass(frozen=True, slots=True)
class Dstack:
    """Every model at its knee with the batch of highest efficacy, tightest SLO first.

    The session is the longest SLO (section 6.1). D-STACK frees a model's share when its batch
    ends; in a plan of standing partitions the models that fit a share take turns there instead. A
    model gets the smallest partition of at least its knee in which its whole rate fits, else a new
    one, else what others have left, else less than its knee ("albeit with high inference latency
    when necessary").
    """

    sizing: Sizing = _FIVE_PERCENT

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible(demand, fleet, tables)
        board = _CutGpus(self.sizing, fleet, tables)
        unserved: dict[str, float] = {}
        for one in sorted(asked.wanted, key=lambda d: (d.slo_ms, d.model)):
            left_rows_per_s = board.place(one)
            if left_rows_per_s > one.rows_per_s * _ROUNDING:
                unserved[one.model] = left_rows_per_s
        reasons = dict.fromkeys(unserved, "every partition that could hold it is full")
        plan = asked.plan(partitions(board.cuts), unserved, reasons)
        session_ms = max((one.slo_ms for one in asked.wanted), default=None)
        return Plan(plan.partitions, plan.unserved_rows_per_s, plan.reasons, session_ms)


class _CutGpus:
    """The accelerators while they are cut for one plan."""

    def __init__(self, sizing: Sizing, fleet: Fleet, tables: Tables) -> None:
        self.cuts = cuts(fleet)
        self._sizing = sizing
        self._tables = tables
        self._sizes: dict[tuple[str, tuple[int, ...]], Size | None] = {}

    def place(self, one: Demand) -> float:
        """Glets for a model until its rate is met or nothing fits; the rate left over."""
        left_rows_per_s = one.rows_per_s
        while left_rows_per_s > one.rows_per_s * _ROUNDING:
            placed_rows_per_s = (
                self._join(one, left_rows_per_s)
                or self._open(one, left_rows_per_s)
                or self._squeeze(one, left_rows_per_s)
                or self._lower(one, left_rows_per_s)
            )
            if not placed_rows_per_s:
                break
            left_rows_per_s -= placed_rows_per_s
        return max(left_rows_per_s, 0.0)

    def _join(self, one: Demand, rows_per_s: float) -> float:
        """The smallest glet of at least the knee that takes the whole rate."""
        for cut, glet in sorted(self._glets(), key=lambda both: both[1].share_pct):
            size = self._size(one, cut.gpu)
            if size is None or glet.share_pct < size.deployed_pct:
                continue
            if turns := self._joined(one, cut, glet, rows_per_s):
                glet.turns = turns
                return rows_per_s
        return 0.0

    def _open(self, one: Demand, rows_per_s: float) -> float:
        """A new glet of at least the knee on the first accelerator with room."""
        for cut in self.cuts:
            size = self._size(one, cut.gpu)
            share = cut.share(size.deployed_pct) if size else None
            if share and (placed_rows_per_s := self._opened(cut, share, one, rows_per_s)):
                return placed_rows_per_s
        return 0.0

    def _squeeze(self, one: Demand, rows_per_s: float) -> float:
        """The highest part of the rate that one of the glets takes."""
        least = one.rows_per_s * _WORTH
        return largest_part(self._glets(), partial(self._joined, one), rows_per_s, least)

    def _lower(self, one: Demand, rows_per_s: float) -> float:
        """A new glet below the knee, as large as there is."""
        for cut in self.cuts:
            share = cut.remaining_pct
            if share and (placed_rows_per_s := self._opened(cut, share, one, rows_per_s)):
                return placed_rows_per_s
        return 0.0

    def _opened(self, cut: GpuCut, share_pct: int, one: Demand, rows_per_s: float) -> float:
        glet = Glet(share_pct)
        alone = self._turn(one, rows_per_s, cut.gpu, share_pct)
        placed_rows_per_s = min(rows_per_s, saturated_rows_per_s(alone)) if alone else 0.0
        if placed_rows_per_s < one.rows_per_s * _ROUNDING:
            return 0.0
        turns = self._joined(one, cut, glet, placed_rows_per_s)
        if turns is None:
            return 0.0
        glet.turns = turns
        cut.add(glet)
        return placed_rows_per_s

    def _joined(
        self, one: Demand, cut: GpuCut, glet: Glet, rows_per_s: float
    ) -> list[CycleTurn] | None:
        """The glet's turns with this rate added; ``None`` where memory or time is short."""
        total_rows_per_s = glet.rows_per_s(one.model) + rows_per_s
        turn = self._turn(one, total_rows_per_s, cut.gpu, glet.share_pct)
        if turn is None or not cut.holds(glet, one.model, self._tables.profiles):
            return None
        turns = [*glet.without(one.model), turn]
        return turns if shortest(turns) else None

    def _turn(self, one: Demand, rows_per_s: float, gpu: Gpu, share_pct: int) -> CycleTurn | None:
        """The model's turn in batches up to its best one; ``None`` where it cannot run."""
        size, latency = self._size(one, gpu), self._tables.surface(one.model)
        if size is None or share_pct < latency.shares_pct[0]:
            return None
        return CycleTurn(one.model, rows_per_s, one.slo_ms, latency.table(share_pct, size.batch))

    def _size(self, one: Demand, gpu: Gpu) -> Size | None:
        key = (one.model, gpu.shares_pct)
        if key not in self._sizes:
            latency = self._tables.surface(one.model)
            most = min(one.max_batch, max(curve[-1][0] for curve in latency.curves.values()))
            self._sizes[key] = self._sizing(latency, one.slo_ms, gpu.shares_pct, most)
        return self._sizes[key]

    def _glets(self) -> list[tuple[GpuCut, Glet]]:
        return [(cut, glet) for cut in self.cuts for glet in cut.glets]
