"""Knee-sized partitions with models taking turns in them: the plan of D-STACK (section 6.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import CutGpus, Glet, GpuCut, left_over, partitions
from interlace.packing.feasibility import feasible
from interlace.perf.duty import CycleTurn, saturated_rows_per_s
from interlace.perf.sizing import Size, Sizing
from interlace.perf.tables import Tables

#: A part of a model's rate below this is not worth an instance.
_WORTH: Final = 0.01
_FIVE_PERCENT: Final = Sizing(over_provision_pct=5)


@dataclass(frozen=True, slots=True)
class Dstack:
    """Every model at its knee with the batch of highest efficacy, tightest SLO first.

    The session is the longest SLO (section 6.1). D-STACK frees a model's share when its batch
    ends; in a plan of standing partitions the models that fit a share take turns there instead. A
    model gets the smallest partition of at least its knee in which its whole rate fits. Else it
    gets a new one, else what others have left, else less than its knee ("albeit with high
    inference latency when necessary").
    """

    sizing: Sizing = _FIVE_PERCENT

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible(demand, fleet, tables)
        board = _CutAtKnees(self.sizing, fleet, tables)
        left = {
            one.model: left_over(one, board.place)
            for one in sorted(asked.wanted, key=lambda d: (d.slo_ms, d.model))
        }
        unserved = {model: rows_per_s for model, rows_per_s in left.items() if rows_per_s}
        reasons = dict.fromkeys(unserved, "every partition that could hold it is full")
        plan = asked.plan(partitions(board.cuts), unserved, reasons)
        session_ms = max((one.slo_ms for one in asked.wanted), default=None)
        return Plan(plan.partitions, plan.unserved_rows_per_s, plan.reasons, session_ms)


class _CutAtKnees(CutGpus):
    """Accelerators that are cut at the models' knees."""

    def __init__(self, sizing: Sizing, fleet: Fleet, tables: Tables) -> None:
        super().__init__(fleet, tables)
        self._sizing = sizing
        self._sizes: dict[tuple[str, tuple[int, ...]], Size | None] = {}

    def place(self, one: Demand, rows_per_s: float) -> float:
        """Place a part of the rate, or all of it; how much."""
        return (
            self.join(one, rows_per_s, self._at_knee(one))
            or self._open_any(one, rows_per_s, below=False)
            or self.squeeze(one, rows_per_s, one.rows_per_s * _WORTH)
            or self._open_any(one, rows_per_s, below=True)
        )

    def _at_knee(self, one: Demand) -> Iterator[tuple[GpuCut, Glet]]:
        """Glets of at least the knee, the smallest first."""
        for cut, glet in sorted(self.glets, key=lambda both: both[1].share_pct):
            size = self._size(one, cut.gpu)
            if size is not None and glet.share_pct >= size.deployed_pct:
                yield cut, glet

    def _open_any(self, one: Demand, rows_per_s: float, below: bool) -> float:
        """A new glet of at least the knee on the first accelerator with room, or below it."""
        for cut in self.cuts:
            size = self._size(one, cut.gpu)
            knee = cut.share(size.deployed_pct) if size else None
            share = cut.remaining_pct if below else knee
            if share and (placed_rows_per_s := self.open(one, rows_per_s, cut, share)):
                return placed_rows_per_s
        return 0.0

    def saturated_rows_per_s(self, one: Demand, cut: GpuCut, share_pct: int) -> float:
        """The highest rate that the share serves of the model alone, in batches of its size."""
        alone = self.turn(one, one.rows_per_s, cut, share_pct)
        return saturated_rows_per_s(alone) if alone else 0.0

    def turn(self, one: Demand, rows_per_s: float, cut: GpuCut, share_pct: int) -> CycleTurn | None:
        """The model's turn in batches up to its best one; ``None`` where it cannot run."""
        size, latency = self._size(one, cut.gpu), self.tables.surface(one.model)
        if size is None or share_pct < latency.shares_pct[0]:
            return None
        return CycleTurn(one.model, rows_per_s, one.slo_ms, latency.table(share_pct, size.batch))

    def _size(self, one: Demand, gpu: Gpu) -> Size | None:
        key = (one.model, gpu.shares_pct)
        if key not in self._sizes:
            latency = self.tables.surface(one.model)
            most = min(one.max_batch, max(curve[-1][0] for curve in latency.curves.values()))
            self._sizes[key] = self._sizing(latency, one.slo_ms, gpu.shares_pct, most)
        return self._sizes[key]
