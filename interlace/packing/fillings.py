"""What a partition of one share can be filled with: whole rates, and one more in part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.perf.duty import CycleTurn, room_rows_per_s, shortest
from interlace.perf.memory import holds
from interlace.perf.tables import Tables

_ROUNDING = 1e-9

#: Models by index with the rate that a partition takes of each.
Filling = tuple[tuple[int, float], ...]


class Fillings:
    """Duty cycles looked at, each once; ``left`` is how many steps may still be taken."""

    def __init__(self, demand: Sequence[Demand], tables: Tables, steps: int) -> None:
        self._demand = demand
        self._tables = tables
        self.left = steps
        self._fits: dict[tuple[int, Filling], bool] = {}
        self._rooms: dict[tuple[int, Filling, int], float] = {}

    @property
    def spent(self) -> bool:
        """True if no more cycles should be looked at than it takes to end in good order."""
        return self.left <= 0

    def of(
        self, gpu: Gpu, share_pct: int, needs: Sequence[float], prices: Sequence[float]
    ) -> list[Filling]:
        """Fillings that no other one contains, the most valuable first."""
        active = [
            i
            for i, need in enumerate(needs)
            if need > 0 and self._tables.saturated_rows_per_s(self._demand[i], share_pct) > 0
        ]
        found = [
            filling
            for whole in self._wholes(gpu, share_pct, needs, active)
            for filling in self._topped(gpu, share_pct, needs, whole, active)
        ]
        self.left -= 1 + len(found) // 8
        return sorted(found, key=lambda f: (-sum(prices[i] * rate for i, rate in f), f))

    def _wholes(
        self, gpu: Gpu, share_pct: int, needs: Sequence[float], active: Sequence[int]
    ) -> Iterator[Filling]:
        """Sets of models whose whole needs fit one cycle: one of them once the steps are used."""
        stack: list[tuple[int, Filling]] = [(0, ())]
        while stack:
            depth, chosen = stack.pop()
            if depth == len(active):
                yield chosen
                if self.spent:
                    return
                continue
            more = (*chosen, (active[depth], needs[active[depth]]))
            fits = self._held(gpu, share_pct, more) and self._fit(share_pct, more)
            if not (fits and self.spent):
                stack.append((depth + 1, chosen))
            if fits:
                stack.append((depth + 1, more))

    def _topped(
        self,
        gpu: Gpu,
        share_pct: int,
        needs: Sequence[float],
        whole: Filling,
        active: Sequence[int],
    ) -> Iterator[Filling]:
        """The set with each further model in part; alone where nothing can be added."""
        inside = {i for i, _ in whole}
        lone = True
        for index in (i for i in active if i not in inside):
            more = tuple(sorted((*whole, (index, needs[index]))))
            if not self._held(gpu, share_pct, more):
                continue
            if self._fit(share_pct, more):
                lone = False
                continue
            room = min(self._room(share_pct, whole, index), needs[index])
            if room > needs[index] * _ROUNDING:
                lone = False
                yield (*whole, (index, room))
        if lone and whole:
            yield whole

    def _held(self, gpu: Gpu, share_pct: int, chosen: Filling) -> bool:
        """True if the accelerator has the memory for these models if it holds nothing else."""
        models = [self._demand[i].model for i, _ in chosen]
        return holds(gpu, [(share_pct, models)], self._tables.profiles)

    def _fit(self, share_pct: int, chosen: Filling) -> bool:
        key = (share_pct, chosen)
        if key not in self._fits:
            saturated = self._tables.saturated_rows_per_s
            busy = sum(r / saturated(self._demand[i], share_pct) for i, r in chosen)
            turns = self._turns(share_pct, chosen) if busy <= 1 + _ROUNDING else []
            self.left -= bool(turns)
            self._fits[key] = shortest(turns) is not None
        return self._fits[key]

    def _room(self, share_pct: int, whole: Filling, index: int) -> float:
        key = (share_pct, whole, index)
        if key not in self._rooms:
            turns = self._turns(share_pct, whole)
            newcomer = self._tables.turn(self._demand[index], 0.0, share_pct)
            self.left -= 1
            self._rooms[key] = room_rows_per_s(turns, newcomer)
        return self._rooms[key]

    def _turns(self, share_pct: int, chosen: Filling) -> list[CycleTurn]:
        return [self._tables.turn(self._demand[i], rate, share_pct) for i, rate in chosen]
