"""The planner of gpulet (section 4.3, Algorithm 1), and best-fit, which it is compared with."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.packing.cuts import Glet, GpuCut, cuts, left_over, partitions
from interlace.packing.feasibility import feasible
from interlace.perf.duty import CycleTurn, fit, room_rows_per_s, runners, settled, shortest, slowed
from interlace.perf.interference import NO_INTERFERENCE, CoRunner, Interference
from interlace.perf.tables import Tables

#: A part of a rate that is rounding.
_ROUNDING: Final = 1e-9
#: A newcomer makes its neighbours' batches larger and so slows itself: parts of its rate to try.
_PARTS: Final = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5)
#: How often rates that neighbours gave up are placed again.
_ROUNDS: Final = 4


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
      its rate, which is placed again, as the published code does; only if less is lost than won.
    - No slack is left unplanned and no rate is raised, as the published code does.
    """

    interference: Interference = NO_INTERFERENCE
    glets_per_gpu: int = 2

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = feasible(demand, fleet, tables)
        search = _ElasticPartitioning(self, fleet, tables)
        order = sorted(asked.wanted, key=lambda d: (d.rows_per_s * d.slo_ms, d.model))  # line 2
        left = {one.model: search.place(one, one.rows_per_s) for one in order}
        for _ in range(_ROUNDS):
            for one in order:
                shed_rows_per_s = search.shed.pop(one.model, 0.0)
                if shed_rows_per_s:
                    left[one.model] += search.place(one, shed_rows_per_s)
        unserved = {
            one.model: left[one.model] + search.shed.get(one.model, 0.0)
            for one in order
            if left[one.model] + search.shed.get(one.model, 0.0) > one.rows_per_s * _ROUNDING
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
        #: Part of its time that a glet is busy at least, by ``Tables.saturated_rows_per_s``.
        self._busy: dict[Glet, float] = {}
        #: Rates that neighbours of newcomers gave up.
        self.shed: dict[str, float] = {}

    def place(self, one: Demand, rows_per_s: float) -> float:
        """Allocate glets for a rate until it is met or nothing fits; what is left over."""
        left_rows_per_s = rows_per_s
        efficient = self._tables.efficient_pct(one, self._shares)  # line 6
        while efficient is not None and left_rows_per_s > one.rows_per_s * _ROUNDING:  # line 4
            required = self._tables.required_pct(one, left_rows_per_s, self._shares)  # line 7
            ideal_pct = efficient if required is None else min(efficient, required)  # line 8
            placed_rows_per_s = self._merge(one, left_rows_per_s)
            for fill in (self._fill, self._fill_by_shedding):
                placed_rows_per_s = placed_rows_per_s or self._best_fit(
                    one, left_rows_per_s, ideal_pct, fill
                )
            for fill in (self._fill, self._fill_by_shedding):
                placed_rows_per_s = placed_rows_per_s or self._squeeze(one, left_rows_per_s, fill)
            if not placed_rows_per_s:
                break
            left_rows_per_s -= placed_rows_per_s
        return left_rows_per_s

    def _merge(self, one: Demand, rows_per_s: float) -> float:
        """Share an allocated glet in time (line 22): its duty cycle must take the whole rate."""
        for glet, cut in self._roomy(one, rows_per_s):
            before_rows_per_s = glet.rows_per_s(one.model)
            turn = self._tables.turn(one, before_rows_per_s + rows_per_s, glet.share_pct)
            turns = [*glet.without(one.model), turn]
            if cut.holds(glet, one.model, self._tables.profiles) and self._settle(cut, glet, turns):
                self._count(glet, one, rows_per_s)
                return rows_per_s
        return 0.0

    def _best_fit(self, one: Demand, rows_per_s: float, ideal_pct: int, fill: Fill) -> float:
        """The smallest empty glet that is large enough, split if it can be (lines 14 to 26)."""
        order = sorted(range(len(self.cuts)), key=lambda i: (self.cuts[i].remaining_pct, i))
        for index in order:
            cut = self.cuts[index]
            share_pct = cut.share(ideal_pct)
            if share_pct is None:
                continue
            glet = Glet(share_pct)
            placed_rows_per_s = fill(cut, glet, one, rows_per_s)
            if placed_rows_per_s:
                cut.add(glet)
                insort(self._allocated, (share_pct, index, len(cut.glets), glet, cut))
                return placed_rows_per_s
        return 0.0

    def _squeeze(self, one: Demand, rows_per_s: float, fill: Fill) -> float:
        """Nothing takes the whole rate: the highest part of it that a shared glet takes."""
        rooms = [(self._room(cut, glet, one), glet, cut) for glet, cut in self._roomy(one, 0.0)]
        for room, glet, cut in sorted(rooms, key=lambda r: -r[0]):
            if room <= one.rows_per_s * _ROUNDING:
                break
            placed_rows_per_s = fill(cut, glet, one, rows_per_s)
            if placed_rows_per_s:
                return placed_rows_per_s
        return 0.0

    def _roomy(self, one: Demand, rows_per_s: float) -> Iterator[tuple[Glet, GpuCut]]:
        """Allocated glets, smallest first, that the rate does not keep busy for too long."""
        saturated = self._tables.saturated_rows_per_s
        for share_pct, _, _, glet, cut in self._allocated:
            most_rows_per_s = saturated(one, share_pct)
            if (
                most_rows_per_s > 0
                and self._busy[glet] + rows_per_s / most_rows_per_s <= 1.0 + _ROUNDING
            ):
                yield glet, cut

    def _fill(self, cut: GpuCut, glet: Glet, one: Demand, limit_rows_per_s: float) -> float:
        """As much of a rate as fits the glet, at most ``limit_rows_per_s``; what was placed."""
        if not cut.holds(glet, one.model, self._tables.profiles):
            return 0.0
        before_rows_per_s = glet.rows_per_s(one.model)
        most_rows_per_s = min(limit_rows_per_s, self._room(cut, glet, one))
        for part in _PARTS:
            rows_per_s = most_rows_per_s * part
            if rows_per_s <= one.rows_per_s * _ROUNDING:
                break
            turn = self._tables.turn(one, before_rows_per_s + rows_per_s, glet.share_pct)
            if self._settle(cut, glet, [*glet.without(one.model), turn]):
                self._count(glet, one, rows_per_s)
                return rows_per_s
        return 0.0

    def _fill_by_shedding(
        self, cut: GpuCut, glet: Glet, one: Demand, limit_rows_per_s: float
    ) -> float:
        """As ``_fill``, where the neighbours give up a part of their rates to keep their SLOs.

        Small sacrifices are tried first, and none that cost more of the accelerator than they win.
        """
        others = [g for g in cut.glets if g is not glet]
        if not others or self._policy.interference == NO_INTERFERENCE:
            return 0.0
        asked = [turn for g in others for turn in g.turns]
        if not cut.holds(glet, one.model, self._tables.profiles):
            return 0.0
        before = glet.rows_per_s(one.model)
        room = self._room(cut, glet, one)
        # What is won is the room, not the rate at hand: what is given up may come to it as well.
        won_pct = room / self._tables.saturated_rows_per_s(one, glet.share_pct) * glet.share_pct
        for kept in _PARTS[1:]:
            lost_pct = sum(self._busy[g] * (1.0 - kept) * g.share_pct for g in others)
            for part in _PARTS[:4] if won_pct > lost_pct else ():
                rows_per_s = min(limit_rows_per_s, room) * part
                turn = self._tables.turn(one, before + rows_per_s, glet.share_pct)
                if self._settle(cut, glet, [*glet.without(one.model), turn], kept):
                    self._shed(asked, others, kept)
                    self._count(glet, one, rows_per_s)
                    return rows_per_s
        return 0.0

    def _shed(self, asked: Sequence[CycleTurn], glets: Sequence[Glet], kept: float) -> None:
        """Note what glets gave up that had the turns ``asked`` and have ``kept`` of their rates."""
        for turn in asked:
            given_up = turn.rows_per_s * (1.0 - kept)
            self.shed[turn.model] = self.shed.get(turn.model, 0.0) + given_up
        for glet in glets:
            self._busy[glet] *= kept

    def _count(self, glet: Glet, one: Demand, rows_per_s: float) -> None:
        part = rows_per_s / self._tables.saturated_rows_per_s(one, glet.share_pct)
        self._busy[glet] = self._busy.get(glet, 0.0) + part

    def _room(self, cut: GpuCut, glet: Glet, one: Demand) -> float:
        """The highest rate that the glet takes on top, its neighbours as they are."""
        turn = self._tables.turn(one, 0.0, glet.share_pct)
        others, beside = glet.without(one.model), self._beside(cut, glet)
        if beside:
            interference = self._policy.interference
            others = [slowed(t, glet.share_pct, beside, interference) for t in others]
            turn = slowed(turn, glet.share_pct, beside, interference)
        return room_rows_per_s(others, turn) - glet.rows_per_s(one.model)

    def _beside(self, cut: GpuCut, glet: Glet) -> list[list[CoRunner]]:
        """Batches that run in the other glets of the accelerator, where interference counts."""
        if self._policy.interference == NO_INTERFERENCE:
            return []
        others = [g for g in cut.glets if g is not glet]
        cycles = [(g, g.cycle or fit(g.turns)) for g in others]
        return [runners((g.share_pct, g.turns), cycle) for g, cycle in cycles if cycle is not None]

    def _settle(self, cut: GpuCut, glet: Glet, turns: list[CycleTurn], kept: float = 1.0) -> bool:
        """Give the glet these turns, and its neighbours ``kept`` of their rates, if all keep SLOs.

        Nothing changes if they do not.
        """
        others = [g for g in cut.glets if g is not glet]
        if self._policy.interference == NO_INTERFERENCE or not others:
            if shortest(turns) is None:
                return False
            glet.turns, glet.cycle = turns, None
            return True
        wanted = [[replace(t, rows_per_s=t.rows_per_s * kept) for t in g.turns] for g in others]
        glets, wanted = [*others, glet], [*wanted, turns]
        loads = [(g.share_pct, those) for g, those in zip(glets, wanted, strict=True)]
        cycles = settled(loads, self._policy.interference)
        if cycles is None:
            return False
        for one, those, cycle in zip(glets, wanted, cycles, strict=True):
            one.turns, one.cycle = those, cycle
        return True


def bestfit(demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan) -> Plan:
    """The smallest share that serves each rate alone, where that leaves the least over.

    No time sharing and no interference, any number of partitions to an accelerator. Models come by
    rate * SLO, as in gpulet's own planner. The paper does not say the following. A remainder that
    can be cut no further is given whole only where no accelerator can be cut to the share, as in
    the published code. A rate that no share serves, or none that is left, takes the largest share;
    the rest of the rate is placed again.
    """
    tables = Tables(profiles)
    asked = feasible(demand, fleet, tables)
    every = cuts(fleet)
    order = sorted(asked.wanted, key=lambda d: (d.rows_per_s * d.slo_ms, d.model))
    place = partial(_place, every=every, tables=tables)
    left = {one.model: left_over(one, place, _ROUNDING) for one in order}
    unserved = {model: rows_per_s for model, rows_per_s in left.items() if rows_per_s}
    reasons = dict.fromkeys(unserved, "no accelerator has a share left that is large enough for it")
    return asked.plan(partitions(every), unserved, reasons)


def _place(one: Demand, rows_per_s: float, every: Sequence[GpuCut], tables: Tables) -> float:
    """One partition for as much of the rate as it serves; 0 if there is no place for it."""
    shares = sorted({share for cut in every for share in cut.gpu.shares_pct})
    wanted_pct = tables.required_pct(one, rows_per_s, shares) or shares[-1]
    smaller = (share for share in reversed(shares) if share < wanted_pct)
    fitting = next(
        filter(None, (_fitting(one, s, every, tables) for s in (wanted_pct, *smaller))), []
    )
    if not fitting:
        return 0.0
    share_pct, _, index = min(fitting)
    placed_rows_per_s = min(rows_per_s, tables.saturated_rows_per_s(one, share_pct))
    if placed_rows_per_s > 0:
        every[index].add(Glet(share_pct, [tables.turn(one, placed_rows_per_s, share_pct)]))
    return placed_rows_per_s


def _fitting(
    one: Demand, wanted_pct: int, every: Sequence[GpuCut], tables: Tables
) -> list[tuple[int, int, int]]:
    """Where a partition of that share fits: the share it gets, what remains there, which it is."""
    shares = ((cut.share(wanted_pct), cut.remaining_pct, i) for i, cut in enumerate(every))
    return [
        (share_pct, remaining_pct, index)
        for share_pct, remaining_pct, index in shares
        if share_pct is not None and every[index].holds(Glet(share_pct), one.model, tables.profiles)
    ]
