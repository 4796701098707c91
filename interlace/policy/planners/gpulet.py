"""Elastic partitioning: the planner of gpulet (section 4.3, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.perf.duty import Turn, shortest
from interlace.perf.interference import Interference
from interlace.perf.tables import Tables
from interlace.policy.bins import FULL, ROUNDING, Bin, Board, Loads
from interlace.policy.checked import checked


@dataclass(frozen=True, slots=True)
class Gpulet:
    """Algorithm 1. ``glets_per_gpu`` is two in the paper; 0 is no bound.

    ``interference`` is the paper's intf (line 20): every batch is as slow as the worst model in
    each other glet of its accelerator makes it, and a glet is not taken if its neighbours' cycles
    no longer hold beside it. Without one this is the paper's "glet", with one its "glet+int".

    Where the paper is silent: a model that fits no empty glet whole is merged into a shared one at
    the highest rate that fits, and what is then left is unserved.
    """

    interference: Interference | None = None
    glets_per_gpu: int = 2

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = checked(demand, fleet, tables)
        wanted, unserved, reasons = asked.wanted, asked.unserved_rps, asked.reasons
        search = _Search(self, fleet, Loads(wanted, tables))
        for one in sorted(wanted, key=lambda d: (d.rate_rps * d.slo_ms, d.model)):  # line 2
            left_rps = search.place(one)
            if left_rps > ROUNDING * one.rate_rps:
                unserved[one.model] = left_rps
                reasons[one.model] = FULL
        return Plan(search.board.partitions(), unserved, reasons)


class _Search:
    """The remaining and the allocated glets of one run of Algorithm 1."""

    def __init__(self, policy: Gpulet, fleet: Fleet, loads: Loads) -> None:
        self.board = Board(fleet, loads, policy.interference)
        self._bound = policy.glets_per_gpu
        self._loads = loads
        self._shares = sorted({share for gpu in fleet.gpus for share in gpu.shares_pct})

    def place(self, one: Demand) -> float:
        """Allocate glets for a model until its rate is met or nothing fits; the rate left over."""
        left_rps = one.rate_rps
        efficient_pct = self._max_efficient(one.model)  # line 6
        while efficient_pct is not None and left_rps > ROUNDING * one.rate_rps:  # line 4
            required_pct = self._min_required(one.model, left_rps)  # line 7
            ideal_pct = min(efficient_pct, required_pct or efficient_pct)  # line 8
            placed_rps = (
                self._merge(one.model, left_rps, ideal_pct)
                or self._best_fit(one.model, left_rps, ideal_pct)
                or self._squeeze(one.model, left_rps)
            )
            if not placed_rps > ROUNDING * one.rate_rps:
                break
            left_rps -= placed_rps
        return left_rps

    def _max_efficient(self, model: str) -> int | None:
        """MaxEfficientPartition: the knee of the rate that each size can serve (Figure 9).

        The knee is where the curve, scaled to its last point, is highest above the diagonal.
        ``None`` if no size meets the SLO at all.
        """
        rates = {s: self._loads.saturated_rps(model, s) for s in self._shares}
        usable = [share for share in self._shares if rates[share] > 0]
        if not usable:
            return None
        return max(usable, key=lambda s: (rates[s] / rates[usable[-1]] - s / 100, -s))

    def _min_required(self, model: str, rate_rps: float) -> int | None:
        """MinRequiredPartition: the smallest size that serves the rate alone (Figure 9)."""
        for share in self._shares:
            alone = self._loads.turn(model, share)
            if alone and shortest([Turn(model, rate_rps, alone.slo_ms, alone.latency_ms)]):
                return share
        return None

    def _merge(self, model: str, rate_rps: float, ideal_pct: int) -> float:
        """Share an allocated glet in time (line 22): its duty cycle must take the whole rate."""
        for glet in sorted(self.board.bins, key=lambda one: one.share_pct):
            if glet.share_pct >= ideal_pct and self.board.admits(glet, model, rate_rps):
                self.board.add(glet, model, rate_rps)
                return rate_rps
        return 0.0

    def _best_fit(self, model: str, rate_rps: float, ideal_pct: int) -> float:
        """The smallest remaining glet that is large enough, split if it can be (lines 14 to 26)."""
        tried: set[tuple[object, ...]] = set()
        for size_pct, gpu in self._remaining():
            kind = (gpu.kind, gpu.memory_bytes, gpu.shares_pct, gpu.layouts, gpu.walls)
            if size_pct < ideal_pct or (kind in tried and not self.board.on(gpu)):
                continue  # an empty accelerator like one that was of no use
            glet = Bin(gpu, self._split_pct(gpu, size_pct, ideal_pct))
            placed_rps = min(rate_rps, self.board.room_rps(glet, model))
            if placed_rps and self.board.admits(glet, model, placed_rps):
                self.board.add(glet, model, placed_rps)
                return placed_rps
            if not self.board.on(gpu):
                tried.add(kind)
        return 0.0

    def _squeeze(self, model: str, rate_rps: float) -> float:
        """Nothing takes the whole rate: the most of it that a shared glet takes."""
        best, best_rps = None, 0.0
        for glet in self.board.bins:
            if min(rate_rps, self.board.most_rps(glet, model)) > best_rps:
                room_rps = min(rate_rps, self.board.room_rps(glet, model))
                if room_rps > best_rps and self.board.admits(glet, model, room_rps):
                    best, best_rps = glet, room_rps
        if best is not None:
            self.board.add(best, model, best_rps)
        return best_rps

    def _remaining(self) -> list[tuple[int, Gpu]]:
        """Remaining glets by size (line 14): what is left of every accelerator."""
        found = []
        for gpu in self.board.gpus:
            if not self._bound or len(self.board.on(gpu)) < self._bound:
                found.append((self.board.rest_pct(gpu), gpu))
        return sorted((one for one in found if one[0]), key=lambda one: one[0])

    def _split_pct(self, gpu: Gpu, size_pct: int, ideal_pct: int) -> int:
        """The part of a remaining glet that is taken: the last glet of a GPU is taken whole."""
        here = [one.share_pct for one in self.board.on(gpu)]
        if self._bound and len(here) + 1 >= self._bound:
            return size_pct
        legal = (s for s in gpu.shares_pct if s >= ideal_pct and gpu.legal([*here, s]))
        return next(legal, size_pct)
