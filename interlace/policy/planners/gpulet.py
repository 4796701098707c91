"""Elastic partitioning: the planner of gpulet (section 4.3, Algorithm 1)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import Glet, GpuCut, cuts, partitions
from interlace.packing.feasibility import feasible
from interlace.perf.duty import CycleTurn, fit, room_rps, shortest
from interlace.perf.interference import ConstantFactor, CoRunner, Interference
from interlace.perf.interfering_cycles import PartitionTurns, runners, settled, slowed
from interlace.perf.tables import Tables

#: A part of a rate that is rounding.
_ROUNDING: Final = 1e-9
#: A newcomer makes its neighbours' batches larger and so slows itself: parts of its rate to try.
_PARTS: Final = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5)
#: How often what neighbours gave up is placed anew.
_ROUNDS: Final = 4
_UNDISTURBED: Final = ConstantFactor(1.0)

#: Fills a glet of an accelerator with as much of a rate as fits; what was placed.
Fill = Callable[[GpuCut, Glet, Demand, float], float]


@dataclass(frozen=True, slots=True)
class Gpulet:
    """Algorithm 1. ``glets_per_gpu`` is two in the paper; 0 is no bound.

    Where the paper is silent:

    - Temporal sharing (line 22) is tried before an empty glet is split, not after: the glet that
      merging would give back is not taken. The smallest glet whose cycle takes the whole rate does.
    - Where no empty glet is left (line 4), a shared one takes the highest part that fits.
    - Interference (line 20) is that of the models and batches on the rest of the accelerator, and
      those must keep their own SLOs beside the newcomer. A neighbour that cannot gives up part of
      its rate, which is placed anew, as the published code does; only if less is lost than won.
    - No slack is left unplanned and no rate is raised, as the published code does.
    """

    interference: Interference = _UNDISTURBED
    glets_per_gpu: int = 2

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible(demand, fleet, tables)
        search = _ElasticPartitioning(self, fleet, tables)
        order = sorted(asked.wanted, key=lambda d: (d.rate_rps * d.slo_ms, d.model))  # line 2
        left = {one.model: search.place(one, one.rate_rps) for one in order}
        for _ in range(_ROUNDS):
            for one in order:
                shed_rps = search.shed.pop(one.model, 0.0)
                if shed_rps:
                    left[one.model] += search.place(one, shed_rps)
        unserved = {
            one.model: left[one.model] + search.shed.get(one.model, 0.0)
            for one in order
            if left[one.model] + search.shed.get(one.model, 0.0) > one.rate_rps * _ROUNDING
        }
        reasons = dict.fromkeys(unserved, "every partition that could hold it is full")
        return asked.plan(partitions(search.cuts), unserved, reasons)


class _ElasticPartitioning:
    """The remaining and the allocated glets of one run of Algorithm 1."""

    def __init__(self, policy: Gpulet, fleet: Fleet, tables: Tables) -> None:
        self._policy = policy
        self._tables = tables
        self._shares = sorted({share for gpu in fleet.gpus for share in gpu.shares_pct})
        self.cuts = cuts(fleet, policy.glets_per_gpu)
        self._allocated: list[tuple[int, int, int, Glet, GpuCut]] = []
        #: Part of its time that a glet is busy at least, by ``Tables.saturated_rps``.
        self._busy: dict[Glet, float] = {}
        #: Rates that neighbours of newcomers gave up.
        self.shed: dict[str, float] = {}

    def place(self, one: Demand, rate_rps: float) -> float:
        """Allocate glets for a rate until it is met or nothing fits; what is left over."""
        left_rps = rate_rps
        efficient = self._tables.efficient_pct(one, self._shares)  # line 6
        while efficient is not None and left_rps > one.rate_rps * _ROUNDING:  # line 4
            required = self._tables.required_pct(one, left_rps, self._shares)  # line 7
            ideal_pct = efficient if required is None else min(efficient, required)  # line 8
            placed_rps = self._merge(one, left_rps)
            for fill in (self._fill, self._fill_by_shedding):
                placed_rps = placed_rps or self._best_fit(one, left_rps, ideal_pct, fill)
            for fill in (self._fill, self._fill_by_shedding):
                placed_rps = placed_rps or self._squeeze(one, left_rps, fill)
            if not placed_rps:
                break
            left_rps -= placed_rps
        return left_rps

    def _merge(self, one: Demand, rate_rps: float) -> float:
        """Share an allocated glet in time (line 22): its duty cycle must take the whole rate."""
        for glet, cut in self._roomy(one, rate_rps):
            before_rps = glet.rate_rps(one.model)
            turn = self._tables.turn(one, before_rps + rate_rps, glet.share_pct)
            turns = [*glet.without(one.model), turn]
            if cut.holds(glet, one.model, self._tables.profiles) and self._settle(cut, glet, turns):
                self._count(glet, one, rate_rps)
                return rate_rps
        return 0.0

    def _best_fit(self, one: Demand, rate_rps: float, ideal_pct: int, fill: Fill) -> float:
        """The smallest empty glet that is large enough, split if it can be (lines 14 to 26)."""
        order = sorted(range(len(self.cuts)), key=lambda i: (self.cuts[i].remaining_pct, i))
        for index in order:
            cut = self.cuts[index]
            share_pct = cut.share(ideal_pct)
            if share_pct is None:
                continue
            glet = Glet(share_pct)
            placed_rps = fill(cut, glet, one, rate_rps)
            if placed_rps:
                cut.add(glet)
                insort(self._allocated, (share_pct, index, len(cut.glets), glet, cut))
                return placed_rps
        return 0.0

    def _squeeze(self, one: Demand, rate_rps: float, fill: Fill) -> float:
        """Nothing takes the whole rate: the highest part of it that a shared glet takes."""
        rooms = [(self._room(cut, glet, one), glet, cut) for glet, cut in self._roomy(one, 0.0)]
        for room, glet, cut in sorted(rooms, key=lambda r: -r[0]):
            if room <= one.rate_rps * _ROUNDING:
                break
            placed_rps = fill(cut, glet, one, rate_rps)
            if placed_rps:
                return placed_rps
        return 0.0

    def _roomy(self, one: Demand, rate_rps: float) -> Iterator[tuple[Glet, GpuCut]]:
        """Allocated glets, smallest first, that the rate does not keep busy for too long."""
        saturated = self._tables.saturated_rps
        for share_pct, _, _, glet, cut in self._allocated:
            most_rps = saturated(one, share_pct)
            if most_rps > 0 and self._busy[glet] + rate_rps / most_rps <= 1.0 + _ROUNDING:
                yield glet, cut

    def _fill(self, cut: GpuCut, glet: Glet, one: Demand, limit_rps: float) -> float:
        """As much of a rate as fits the glet, at most ``limit_rps``; what was placed."""
        if not cut.holds(glet, one.model, self._tables.profiles):
            return 0.0
        before_rps = glet.rate_rps(one.model)
        most_rps = min(limit_rps, self._room(cut, glet, one))
        for part in _PARTS:
            rate_rps = most_rps * part
            if rate_rps <= one.rate_rps * _ROUNDING:
                break
            turn = self._tables.turn(one, before_rps + rate_rps, glet.share_pct)
            if self._settle(cut, glet, [*glet.without(one.model), turn]):
                self._count(glet, one, rate_rps)
                return rate_rps
        return 0.0

    def _fill_by_shedding(self, cut: GpuCut, glet: Glet, one: Demand, limit_rps: float) -> float:
        """As ``_fill``, beside neighbours that must do less to keep their SLOs."""
        others = [g for g in cut.glets if g is not glet]
        if not others or self._policy.interference == _UNDISTURBED:
            return 0.0
        if not cut.holds(glet, one.model, self._tables.profiles):
            return 0.0
        before_rps = glet.rate_rps(one.model)
        room_rps = self._room(cut, glet, one)
        # What is won is the room, not the rate at hand: what is given up may come to it as well.
        won = room_rps / self._tables.saturated_rps(one, glet.share_pct) * glet.share_pct
        for kept in _PARTS[1:]:
            lost = sum(self._busy[g] * (1.0 - kept) * g.share_pct for g in others)
            for part in _PARTS[:4] if won > lost else ():
                rate_rps = min(limit_rps, room_rps) * part
                turn = self._tables.turn(one, before_rps + rate_rps, glet.share_pct)
                turns = [*glet.without(one.model), turn]
                if self._shed_and_settle(glet, turns, others, kept):
                    self._count(glet, one, rate_rps)
                    return rate_rps
        return 0.0

    def _shed_and_settle(
        self, glet: Glet, turns: list[CycleTurn], others: list[Glet], kept: float
    ) -> bool:
        """Give a glet these turns if the others keep their SLOs with that part of their rates."""
        fewer = [[replace(t, rate_rps=t.rate_rps * kept) for t in g.turns] for g in others]
        loads = [(g.share_pct, less) for g, less in zip(others, fewer, strict=True)]
        cycles = settled([*loads, (glet.share_pct, turns)], self._policy.interference)
        if cycles is None:
            return False
        for other, less in zip(others, fewer, strict=True):
            for before in other.turns:
                given_up = before.rate_rps * (1.0 - kept)
                self.shed[before.model] = self.shed.get(before.model, 0.0) + given_up
            other.turns = less
            self._busy[other] *= kept
        glet.turns = turns
        for any_glet, cycle in zip([*others, glet], cycles, strict=True):
            any_glet.cycle = cycle
        return True

    def _count(self, glet: Glet, one: Demand, rate_rps: float) -> None:
        part = rate_rps / self._tables.saturated_rps(one, glet.share_pct)
        self._busy[glet] = self._busy.get(glet, 0.0) + part

    def _room(self, cut: GpuCut, glet: Glet, one: Demand) -> float:
        """The highest rate that the glet takes on top, its neighbours as they are."""
        turn = self._tables.turn(one, 0.0, glet.share_pct)
        others, beside = glet.without(one.model), self._beside(cut, glet)
        if beside:
            interference = self._policy.interference
            others = [slowed(t, glet.share_pct, beside, interference) for t in others]
            turn = slowed(turn, glet.share_pct, beside, interference)
        return room_rps(others, turn) - glet.rate_rps(one.model)

    def _beside(self, cut: GpuCut, glet: Glet) -> list[list[CoRunner]]:
        """Who runs in the other glets of the accelerator, if it matters."""
        if self._policy.interference == _UNDISTURBED:
            return []
        others = [g for g in cut.glets if g is not glet]
        cycles = [(g, g.cycle or fit(g.turns)) for g in others]
        return [runners(_load(g), cycle) for g, cycle in cycles if cycle is not None]

    def _settle(self, cut: GpuCut, glet: Glet, turns: list[CycleTurn]) -> bool:
        """Give the glet these turns if it and its neighbours then keep their SLOs."""
        others = [g for g in cut.glets if g is not glet]
        if self._policy.interference == _UNDISTURBED or not others:
            if shortest(turns) is None:
                return False
            glet.turns, glet.cycle = turns, None
            return True
        loads = [*map(_load, others), (glet.share_pct, turns)]
        cycles = settled(loads, self._policy.interference)
        if cycles is None:
            return False
        glet.turns = turns
        for one, cycle in zip([*others, glet], cycles, strict=True):
            one.cycle = cycle
        return True


def _load(glet: Glet) -> PartitionTurns:
    return glet.share_pct, glet.turns
