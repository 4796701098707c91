"""Knee-sized partitions with models taking turns in them: the plan of D-STACK (section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.perf.duty import Turn, fit, saturated_rps
from interlace.perf.interference import ConstantFactor
from interlace.perf.latency import Surface, surface
from interlace.perf.memory import holds
from interlace.perf.sizing import Size, Sizing
from interlace.policy.packing.screening import screened

#: Rates below this part of what was asked are served: rounding.
_ROUNDING: Final = 1e-6
_HALVINGS: Final = 12
_UNDISTURBED: Final = ConstantFactor(1.0)
_FIVE_PERCENT: Final = Sizing(over_provision_pct=5)


@dataclass(slots=True, eq=False)
class _Tile:
    """A partition in the making and the turns in it."""

    gpu: Gpu
    share_pct: int
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Dstack:
    """Every model at its knee with the batch of highest efficacy, tightest SLO first.

    The session is the longest SLO (section 6.1). D-STACK frees a model's share when its batch
    ends; a plan of standing partitions has the models that fit a share take turns there instead. A
    model gets the smallest partition of at least its knee in which its whole rate fits, else a new
    one, else what others have left, else less than its knee ("albeit with high inference latency
    when necessary").
    """

    sizing: Sizing = _FIVE_PERCENT

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        wanted, unserved, reasons = screened(demand, fleet, profiles, _UNDISTURBED)
        board = _Board(self.sizing, fleet, profiles)
        for one in sorted(wanted, key=lambda d: (d.slo_ms, d.model)):
            left_rps = board.place(one)
            if left_rps > one.rate_rps * _ROUNDING:
                unserved[one.model] = left_rps
                reasons[one.model] = board.why(one)
        session_ms = max((one.slo_ms for one in wanted), default=None)
        return Plan(board.partitions(), unserved, reasons, session_ms=session_ms)


class _Board:
    """The accelerators and their tiles during one plan."""

    def __init__(self, sizing: Sizing, fleet: Fleet, profiles: Profiles) -> None:
        self._sizing = sizing
        self._gpus = fleet.gpus
        self._profiles = profiles
        self._tiles: list[_Tile] = []
        self._surfaces: dict[str, Surface] = {}
        self._sizes: dict[tuple[str, tuple[int, ...]], Size | None] = {}

    def place(self, one: Demand) -> float:
        """Tiles for a model until its rate is met or nothing fits; the rate left over."""
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

    def why(self, one: Demand) -> str:
        """Why part of a model's rate is unserved, in words."""
        if any(self._size(one, gpu) for gpu in self._gpus):
            return "every partition that could hold it is full"
        alone_ms = self._surface(one.model).latency_ms(1, 100)
        return (
            f"one row alone takes {alone_ms:.1f} ms on a whole accelerator, and D-STACK runs what "
            f"ends within half the SLO: raise the SLO above {2 * alone_ms:.0f} ms"
        )

    def partitions(self) -> tuple[Partition, ...]:
        """The tiles as partitions, numbered on each accelerator."""
        counts = {gpu.id: 0 for gpu in self._gpus}
        made = []
        for tile in self._tiles:
            name = f"{tile.gpu.id}:{counts[tile.gpu.id]}"
            counts[tile.gpu.id] += 1
            made.append(_partition(name, tile))
        return tuple(made)

    def _join(self, one: Demand, rate_rps: float) -> float:
        """The smallest tile of at least the knee that takes the whole rate."""
        for tile in sorted(self._tiles, key=lambda t: t.share_pct):
            size = self._size(one, tile.gpu)
            if size and tile.share_pct >= size.deployed_pct and self._takes(tile, one, rate_rps):
                return self._add(tile, one, rate_rps)
        return 0.0

    def _open(self, one: Demand, rate_rps: float) -> float:
        """A new tile of at least the knee on the first accelerator with room."""
        for gpu in self._gpus:
            size = self._size(one, gpu)
            for share in (s for s in self._legal(gpu) if size and s >= size.deployed_pct):
                if placed_rps := self._opened(gpu, share, one, rate_rps):
                    return placed_rps
        return 0.0

    def _squeeze(self, one: Demand, rate_rps: float) -> float:
        """The highest part of the rate that one of the tiles takes, and at least a hundredth."""
        best_rps, best = 0.0, None
        for tile in self._tiles:
            low_rps, high_rps = best_rps, rate_rps
            for _ in range(_HALVINGS):
                middle_rps = (low_rps + high_rps) / 2
                if self._takes(tile, one, middle_rps):
                    low_rps, best_rps, best = middle_rps, middle_rps, tile
                else:
                    high_rps = middle_rps
        if best is None or best_rps < one.rate_rps / 100.0:
            return 0.0
        return self._add(best, one, best_rps)

    def _lower(self, one: Demand, rate_rps: float) -> float:
        """A new tile below the knee, as large as there is."""
        for gpu in self._gpus:
            share = max(self._legal(gpu), default=0)
            if placed_rps := self._opened(gpu, share, one, rate_rps):
                return placed_rps
        return 0.0

    def _opened(self, gpu: Gpu, share_pct: int, one: Demand, rate_rps: float) -> float:
        if not self._size(one, gpu):
            return 0.0
        tile = _Tile(gpu, share_pct)
        turn = self._turn(tile, one, rate_rps)
        placed_rps = min(rate_rps, saturated_rps(turn)) if turn else 0.0
        if placed_rps <= 0.0 or not self._takes(tile, one, placed_rps):
            return 0.0
        self._tiles.append(tile)
        return self._add(tile, one, placed_rps)

    def _takes(self, tile: _Tile, one: Demand, rate_rps: float) -> bool:
        turns = self._joined(tile, one, rate_rps)
        return turns is not None and self._remembers(tile, one.model) and fit(turns) is not None

    def _add(self, tile: _Tile, one: Demand, rate_rps: float) -> float:
        tile.turns = self._joined(tile, one, rate_rps) or tile.turns
        return rate_rps

    def _joined(self, tile: _Tile, one: Demand, rate_rps: float) -> list[Turn] | None:
        """The tile's turns with this rate added; ``None`` if the model cannot run there."""
        before_rps = sum(t.rate_rps for t in tile.turns if t.model == one.model)
        turn = self._turn(tile, one, before_rps + rate_rps)
        others = [t for t in tile.turns if t.model != one.model]
        return None if turn is None else [*others, turn]

    def _turn(self, tile: _Tile, one: Demand, rate_rps: float) -> Turn | None:
        size, latency = self._size(one, tile.gpu), self._surface(one.model)
        if size is None or tile.share_pct < latency.shares_pct[0]:
            return None
        table = latency.table(tile.share_pct, size.batch)
        return Turn(one.model, rate_rps, one.slo_ms, table)

    def _legal(self, gpu: Gpu) -> list[int]:
        taken = [tile.share_pct for tile in self._tiles if tile.gpu.id == gpu.id]
        return [share for share in gpu.shares_pct if gpu.legal([*taken, share])]

    def _remembers(self, tile: _Tile, model: str) -> bool:
        """True if the accelerator's memory holds one more instance of the model."""
        held = [
            (t.share_pct, [turn.model for turn in t.turns])
            for t in self._tiles
            if t.gpu.id == tile.gpu.id and t is not tile
        ]
        here = list(dict.fromkeys([*(turn.model for turn in tile.turns), model]))
        return holds(tile.gpu, [*held, (tile.share_pct, here)], self._profiles)

    def _size(self, one: Demand, gpu: Gpu) -> Size | None:
        key = (one.model, gpu.shares_pct)
        if key not in self._sizes:
            latency = self._surface(one.model)
            most = min(one.max_batch, max(curve[-1][0] for curve in latency.curves.values()))
            self._sizes[key] = self._sizing(latency, one.slo_ms, gpu.shares_pct, most)
        return self._sizes[key]

    def _surface(self, model: str) -> Surface:
        if model not in self._surfaces:
            self._surfaces[model] = surface(self._profiles[model])
        return self._surfaces[model]


def _partition(name: str, tile: _Tile) -> Partition:
    cycle = fit(tile.turns)
    assert cycle is not None, f"{name} was given turns that fit no cycle"
    turns = zip(tile.turns, cycle.batches, strict=True)
    slots = tuple(Slot(turn.model, batch, turn.rate_rps) for turn, batch in turns)
    return Partition(name, tile.gpu.id, tile.share_pct, slots, cycle.duty_ms)
