"""Accelerators while they are being cut, partition by partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Slot
from interlace.core.profile import Profiles
from interlace.perf.duty import CycleTurn, DutyCycle, fit, shortest
from interlace.perf.memory import holds
from interlace.perf.tables import Tables

_HALVINGS: Final = 12
#: Rates below this part of what was asked are served.
ROUNDING: Final = 1e-6


@dataclass(slots=True, eq=False)
class Glet:
    """A partition in the making (gpulet calls it that), the turns in it and their cycle.

    ``cycle`` is ``None`` where the one of lowest occupancy will do.
    """

    share_pct: int
    turns: list[CycleTurn] = field(default_factory=list)
    cycle: DutyCycle | None = None

    @property
    def models(self) -> list[str]:
        return [turn.model for turn in self.turns]

    def without(self, model: str) -> list[CycleTurn]:
        """The turns of all other models."""
        return [turn for turn in self.turns if turn.model != model]

    def rows_per_s(self, model: str) -> float:
        """What is planned here for a model."""
        return sum(turn.rows_per_s for turn in self.turns if turn.model == model)


@dataclass(slots=True, eq=False)
class GpuCut:
    """One accelerator and the glets it has been cut into so far, at most ``most`` of them."""

    gpu: Gpu
    most: int = 0
    glets: list[Glet] = field(default_factory=list)
    remaining_pct: int = 0

    def __post_init__(self) -> None:
        self._look()

    def share(self, wanted_pct: int) -> int | None:
        """The share that a glet of at least ``wanted_pct`` would get; ``None`` if there is no room.

        The last glet that an accelerator may have takes all that remains of it.
        """
        if wanted_pct > self.remaining_pct:
            return None
        if self.most and len(self.glets) + 1 >= self.most and self.glets:
            return self.remaining_pct
        there = [glet.share_pct for glet in self.glets]
        for share in self.gpu.shares_pct:
            if share >= wanted_pct and self.gpu.legal([*there, share]):
                return share
        return None

    def add(self, glet: Glet) -> None:
        """One more glet; its share must be legal beside the others."""
        self.glets.append(glet)
        self._look()

    def holds(self, glet: Glet, model: str, profiles: Profiles) -> bool:
        """True if there is memory for the model in ``glet``, be that one of these or a new one."""
        if model in glet.models:
            return True
        others = [(g.share_pct, g.models) for g in self.glets if g is not glet]
        return holds(self.gpu, [*others, (glet.share_pct, [*glet.models, model])], profiles)

    def _look(self) -> None:
        there = [glet.share_pct for glet in self.glets]
        full = self.most and len(there) >= self.most
        legal = (s for s in reversed(self.gpu.shares_pct) if self.gpu.legal([*there, s]))
        self.remaining_pct = 0 if full else next(legal, 0)


class CutGpus:
    """The accelerators of a fleet while one plan cuts them: where rates of models fit."""

    def __init__(self, fleet: Fleet, tables: Tables, most: int = 0) -> None:
        self.cuts = cuts(fleet, most)
        self.tables = tables

    @property
    def glets(self) -> list[tuple[GpuCut, Glet]]:
        """All glets, in the fleet's order."""
        return [(cut, glet) for cut in self.cuts for glet in cut.glets]

    def turn(self, one: Demand, rows_per_s: float, cut: GpuCut, share_pct: int) -> CycleTurn | None:
        """The model's turn at that rate; ``None`` where it cannot run."""
        return self.tables.turn(one, rows_per_s, share_pct)

    def saturated_rows_per_s(self, one: Demand, cut: GpuCut, share_pct: int) -> float:
        """The highest rate that the share serves of the model alone."""
        return self.tables.saturated_rows_per_s(one, share_pct)

    def joined(
        self, one: Demand, cut: GpuCut, glet: Glet, rows_per_s: float
    ) -> list[CycleTurn] | None:
        """The glet's turns with this rate added; ``None`` where memory or time is short."""
        turn = self.turn(one, glet.rows_per_s(one.model) + rows_per_s, cut, glet.share_pct)
        if turn is None or not cut.holds(glet, one.model, self.tables.profiles):
            return None
        turns = [*glet.without(one.model), turn]
        return turns if shortest(turns) else None

    def join(self, one: Demand, rows_per_s: float, glets: Iterable[tuple[GpuCut, Glet]]) -> float:
        """Add the whole rate to the first of these glets that takes it; what was placed."""
        for cut, glet in glets:
            if turns := self.joined(one, cut, glet, rows_per_s):
                glet.turns = turns
                return rows_per_s
        return 0.0

    def open(self, one: Demand, rows_per_s: float, cut: GpuCut, share_pct: int) -> float:
        """Cut a new glet for as much of the rate as it serves; what was placed."""
        placed_rows_per_s = min(rows_per_s, self.saturated_rows_per_s(one, cut, share_pct))
        glet = Glet(share_pct)
        if placed_rows_per_s < one.rows_per_s * ROUNDING:
            return 0.0
        if turns := self.joined(one, cut, glet, placed_rows_per_s):
            glet.turns = turns
            cut.add(glet)
            return placed_rows_per_s
        return 0.0

    def squeeze(self, one: Demand, rows_per_s: float, least_rows_per_s: float) -> float:
        """Add the largest part of the rate that any glet takes, by bisection; what was placed."""
        most = 0.0
        best: tuple[Glet, list[CycleTurn]] | None = None
        for cut, glet in self.glets:
            low, high = most, rows_per_s
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                if turns := self.joined(one, cut, glet, middle):
                    low, most, best = middle, middle, (glet, turns)
                else:
                    high = middle
        if best is None or most < least_rows_per_s:
            return 0.0
        best[0].turns = best[1]
        return most


def left_over(
    one: Demand, place: Callable[[Demand, float], float], rounding: float = ROUNDING
) -> float:
    """What is left of a rate once ``place``, which takes parts of it, finds no more room."""
    left_rows_per_s = one.rows_per_s
    while left_rows_per_s > one.rows_per_s * rounding:
        placed_rows_per_s = place(one, left_rows_per_s)
        if not placed_rows_per_s:
            return left_rows_per_s
        left_rows_per_s -= placed_rows_per_s
    return 0.0


def cuts(fleet: Fleet, most: int = 0) -> list[GpuCut]:
    """Every accelerator of a fleet, uncut."""
    return [GpuCut(gpu, most) for gpu in fleet.gpus]


def partitions(cut: Iterable[GpuCut]) -> tuple[Partition, ...]:
    """The glets as partitions: of their own cycle, or of the one of lowest occupancy."""
    return tuple(
        _partition(f"{one.gpu.id}:{index}", one.gpu.id, glet)
        for one in cut
        for index, glet in enumerate(one.glets)
        if glet.turns
    )


def _partition(name: str, gpu: str, glet: Glet) -> Partition:
    cycle = glet.cycle or fit(glet.turns)
    assert cycle is not None, f"{name} was given turns that fit no cycle"
    return Partition(name, gpu, glet.share_pct, slots(glet.turns, cycle), cycle.duty_ms)


def slots(turns: Sequence[CycleTurn], cycle: DutyCycle) -> tuple[Slot, ...]:
    """Turns of a cycle as a plan's slots."""
    return tuple(
        Slot(turn.model, batch, turn.rows_per_s)
        for turn, batch in zip(turns, cycle.batches, strict=True)
    )
