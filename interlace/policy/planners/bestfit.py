"""Greedy best-fit partitioning: gpulet's baseline for sharing in space alone (section 2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.perf.tables import Tables
from interlace.policy.bins import FULL, ROUNDING, Bin, Board, Loads
from interlace.policy.checked import checked


@dataclass(frozen=True, slots=True)
class BestFit:
    """Every model has partitions to itself, of the smallest share that serves what is left of it.

    Each goes to the accelerator that it leaves least of. A rate that no share serves alone first
    has partitions of the share that serves most. Nothing is shared in time, and neighbours are
    taken not to slow each other (gpulet section 2.4). Models in the order of their rate, highest
    first, which the paper does not give.
    """

    def __call__(
        self, demand: Sequence[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        tables = Tables(profiles)
        asked = checked(demand, fleet, tables)
        wanted, unserved, reasons = asked.wanted, asked.unserved_rps, asked.reasons
        board = Board(fleet, Loads(wanted, tables))
        for one in sorted(wanted, key=lambda d: (-d.rate_rps, d.model)):
            left_rps = self._place(one, board)
            if left_rps > ROUNDING * one.rate_rps:
                unserved[one.model] = left_rps
                reasons[one.model] = FULL
        return Plan(board.partitions(), unserved, reasons)

    def _place(self, one: Demand, board: Board) -> float:
        """Partitions for the model while any fits; the rate that is left."""
        left_rps = one.rate_rps
        while left_rps > ROUNDING * one.rate_rps:
            best = _best(one.model, left_rps, board)
            if best is None:
                break
            gpu, share_pct = best
            rate_rps = min(left_rps, board.loads.saturated_rps(one.model, share_pct))
            board.add(Bin(gpu, share_pct), one.model, rate_rps)
            left_rps -= rate_rps
        return left_rps


def _best(model: str, rate_rps: float, board: Board) -> tuple[Gpu, int] | None:
    """Where the model's next partition goes, and its share; ``None`` if there is no place."""
    for share_pct in _wanted(model, rate_rps, board):
        fitting = [
            gpu
            for gpu in board.gpus
            if gpu.legal([*(one.share_pct for one in board.on(gpu)), share_pct])
            and board.remembers(Bin(gpu, share_pct), [model])
        ]
        if fitting:
            return min(fitting, key=lambda gpu: board.rest_pct(gpu) - share_pct), share_pct
    return None


def _wanted(model: str, rate_rps: float, board: Board) -> list[int]:
    """Shares to try in order: the least that serves the rate, larger ones, then smaller ones."""
    shares = sorted({share for gpu in board.gpus for share in gpu.shares_pct})
    served = {share: board.loads.saturated_rps(model, share) for share in shares}
    enough = [share for share in shares if served[share] >= rate_rps]
    part = [share for share in shares if 0 < served[share] < rate_rps]
    return [*enough, *sorted(part, key=lambda share: (-served[share], share))]
