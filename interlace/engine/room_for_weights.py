"""Memory for a load: what leaves for it, and what may not."""

from __future__ import annotations

from interlace.core.messages import Command
from interlace.engine.residency import GpuWeights, ModelWeights
from interlace.engine.state import EngineState
from interlace.policy.base import System


class RoomForWeights:
    """Asks a policy what leaves, and sees to it that nothing leaves that may not."""

    def __init__(self, state: EngineState, system: System) -> None:
        self._state = state
        self._system = system

    def make(
        self, place: GpuWeights, entry: ModelWeights, need_bytes: int, force: bool, now_ms: float
    ) -> list[Command]:
        """Evict enough for a load, or nothing. By ``force`` also what requests wait for.

        What is forced out and still runs is closed to dispatchers until its batch has ended.
        """
        leaving = self._leaving(place, entry, need_bytes, now_ms)
        if not leaving and force:
            place.forced = True
            leaving = self._leaving(place, entry, need_bytes, now_ms)
            place.forced = False
        evicts: list[Command] = []
        for one, layers in leaving.items():
            left = place.models[one]
            if left.running:
                left.closed, left.open, place.closing = True, False, True
            else:
                evicts.append(place.release(left, frozenset(layers)))
                self._state.cold_waiting[one] = None
        return evicts

    def _leaving(
        self, place: GpuWeights, entry: ModelWeights, need_bytes: int, now_ms: float
    ) -> dict[str, list[int]]:
        holdings = [one for one in place.holding.values() if one is not entry]
        leaving: dict[str, list[int]] = {}
        for model, layers in self._system.cold.eviction(need_bytes, holdings, now_ms):
            one = place.models[model]
            if need_bytes > 0 and one.may_leave:
                leaving.setdefault(model, []).extend(layers)
                need_bytes -= one.curve.nbytes(layers)
        return leaving if need_bytes <= 0 else {}
