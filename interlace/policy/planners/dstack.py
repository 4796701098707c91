"""Knee-sized partitions with models taking turns in them: the plan of D-STACK (section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import Glet, GpuCut, cuts, partitions
from interlace.packing.feasibility import feasible
from interlace.perf.duty import CycleTurn, saturated_rps, shortest
from interlace.perf.sizing import Size, Sizing
from interlace.perf.tables import Tables

#: Rates below this part of what was asked are served: rounding.
_ROUNDING: Final = 1e-6
#: A part of a model's rate below this is not worth an instance.
_WORTH: Final = 0.01
_HALVINGS: Final = 12
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
        board = _Placement(self.sizing, fleet, tables)
        unserved: dict[str, float] = {}
        for one in sorted(asked.wanted, key=lambda d: (d.slo_ms, d.model)):
            left_rps = board.place(one)
            if left_rps > one.rate_rps * _ROUNDING:
                unserved[one.model] = left_rps
        reasons = dict.fromkeys(unserved, "every partition that could hold it is full")
        plan = asked.plan(partitions(board.cuts), unserved, reasons)
        session_ms = max((one.slo_ms for one in asked.wanted), default=None)
        return Plan(plan.partitions, plan.unserved_rps, plan.reasons, session_ms)


class _Placement:
    """The accelerators while they are cut for one plan."""

    def __init__(self, sizing: Sizing, fleet: Fleet, tables: Tables) -> None:
        self.cuts = cuts(fleet)
        self._sizing = sizing
        self._tables = tables
        self._sizes: dict[tuple[str, tuple[int, ...]], Size | None] = {}

    def place(self, one: Demand) -> float:
        """Glets for a model until its rate is met or nothing fits; the rate left over."""
        left_rps = one.rate_rps
        while left_rps > one.rate_rps * _ROUNDING:
            placed_rps = (
                self._join(one, left_rps)
                or self._open(one, left_rps)
                or self._squeeze(one, left_rps)
                or self._lower(one, left_rps)
            )
            if not placed_rps:
                break
            left_rps -= placed_rps
        return max(left_rps, 0.0)

    def _join(self, one: Demand, rate_rps: float) -> float:
        """The smallest glet of at least the knee that takes the whole rate."""
        for cut, glet in sorted(self._glets(), key=lambda both: both[1].share_pct):
            size = self._size(one, cut.gpu)
            if size is None or glet.share_pct < size.deployed_pct:
                continue
            if turns := self._joined(cut, glet, one, rate_rps):
                glet.turns = turns
                return rate_rps
        return 0.0

    def _open(self, one: Demand, rate_rps: float) -> float:
        """A new glet of at least the knee on the first accelerator with room."""
        for cut in self.cuts:
            size = self._size(one, cut.gpu)
            share = cut.share(size.deployed_pct) if size else None
            if share and (placed_rps := self._opened(cut, share, one, rate_rps)):
                return placed_rps
        return 0.0

    def _squeeze(self, one: Demand, rate_rps: float) -> float:
        """The highest part of the rate that one of the glets takes."""
        best_rps = 0.0
        best: tuple[Glet, list[CycleTurn]] | None = None
        for cut, glet in self._glets():
            low_rps, high_rps = best_rps, rate_rps
            for _ in range(_HALVINGS):
                middle_rps = (low_rps + high_rps) / 2
                if turns := self._joined(cut, glet, one, middle_rps):
                    low_rps, best_rps, best = middle_rps, middle_rps, (glet, turns)
                else:
                    high_rps = middle_rps
        if best is None or best_rps < one.rate_rps * _WORTH:
            return 0.0
        best[0].turns = best[1]
        return best_rps

    def _lower(self, one: Demand, rate_rps: float) -> float:
        """A new glet below the knee, as large as there is."""
        for cut in self.cuts:
            share = cut.remaining_pct
            if share and (placed_rps := self._opened(cut, share, one, rate_rps)):
                return placed_rps
        return 0.0

    def _opened(self, cut: GpuCut, share_pct: int, one: Demand, rate_rps: float) -> float:
        glet = Glet(share_pct)
        alone = self._turn(one, rate_rps, cut.gpu, share_pct)
        placed_rps = min(rate_rps, saturated_rps(alone)) if alone else 0.0
        if placed_rps < one.rate_rps * _ROUNDING:
            return 0.0
        turns = self._joined(cut, glet, one, placed_rps)
        if turns is None:
            return 0.0
        glet.turns = turns
        cut.add(glet)
        return placed_rps

    def _joined(
        self, cut: GpuCut, glet: Glet, one: Demand, rate_rps: float
    ) -> list[CycleTurn] | None:
        """The glet's turns with this rate added; ``None`` where memory or time is short."""
        total_rps = glet.rate_rps(one.model) + rate_rps
        turn = self._turn(one, total_rps, cut.gpu, glet.share_pct)
        if turn is None or not cut.holds(glet, one.model, self._tables.profiles):
            return None
        turns = [*glet.without(one.model), turn]
        return turns if shortest(turns) else None

    def _turn(self, one: Demand, rate_rps: float, gpu: Gpu, share_pct: int) -> CycleTurn | None:
        """The model's turn in batches up to its best one; ``None`` where it cannot run."""
        size, latency = self._size(one, gpu), self._tables.surface(one.model)
        if size is None or share_pct < latency.shares_pct[0]:
            return None
        return CycleTurn(one.model, rate_rps, one.slo_ms, latency.table(share_pct, size.batch))

    def _size(self, one: Demand, gpu: Gpu) -> Size | None:
        key = (one.model, gpu.shares_pct)
        if key not in self._sizes:
            latency = self._tables.surface(one.model)
            most = min(one.max_batch, max(curve[-1][0] for curve in latency.curves.values()))
            self._sizes[key] = self._sizing(latency, one.slo_ms, gpu.shares_pct, most)
        return self._sizes[key]

    def _glets(self) -> list[tuple[GpuCut, Glet]]:
        return [(cut, glet) for cut in self.cuts for glet in cut.glets]
