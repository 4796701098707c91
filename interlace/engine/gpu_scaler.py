"""Growing and shrinking the fleet: accelerators that are there, wanted, and dismissed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from interlace.core.hardware import Fleet, Gpu
from interlace.core.messages import Command, DismissGpu, PlanSolved, ScaleFleet
from interlace.engine.live_partition import PartitionState
from interlace.engine.state import EngineState
from interlace.policy.base import Scaler


class GpuScaler:
    """Asks for accelerators and gives up those that are not needed.

    Level-triggered like plans: it asks for a total, not for a change.
    """

    def __init__(self, state: EngineState, scaler: Scaler) -> None:
        self._state = state
        self._scaler = scaler
        self._wanted = self._there()
        self._departing: dict[str, Gpu] = {}

    @property
    def largest(self) -> Fleet | None:
        """All accelerators that are there or can be had; ``None`` if the fleet is fixed."""
        if not self._state.elastic:
            return None
        return Fleet((*self._state.fleet.gpus, *self._spare()))

    @property
    def coming(self) -> bool:
        """True while accelerators that were asked for, and can be had, have not joined."""
        missing = self._wanted - self._there()
        return bool(missing & Counter(gpu.kind for gpu in self._spare()))

    def joined(self, gpu: Gpu) -> None:
        """An accelerator joined; it holds nothing."""
        fleet = self._state.fleet
        self._state.reserve.pop(gpu.id, None)
        self._departing.pop(gpu.id, None)
        if all(one.id != gpu.id for one in fleet.gpus):
            self._state.fleet = Fleet((*fleet.gpus, gpu))

    def left(self, gpu: str) -> bool:
        """An accelerator is gone; true if it had not been dismissed, so a new plan is needed."""
        if gpu in self._departing:
            self._state.reserve[gpu] = self._departing.pop(gpu)
            return False
        self._without(gpu)
        state = self._state
        for live in [one for one in state.partitions.values() if one.gpu == gpu]:
            live.transition_to(PartitionState.GONE)
            del state.partitions[live.id]
            state.partitions_lost += 1
        kept = tuple(p for p in state.target.partitions if p.gpu != gpu)
        state.target = replace(state.target, partitions=kept)
        return True

    def scale_for(self, planned: PlanSolved) -> list[Command]:
        """Ask for as many accelerators as the scaler derives from a new plan."""
        state = self._state
        ample, largest = planned.ample, self.largest
        if ample is None or largest is None:
            # A fixed fleet may be too small, which its owner should know; it is never too large.
            wanted = Counter(self._scaler(planned.plan, state.fleet)) | self._there()
        else:
            most = Counter(gpu.kind for gpu in largest.gpus)
            wanted = Counter(self._scaler(ample, largest)) & most
        if wanted == self._wanted:
            return []
        self._wanted = wanted
        return [ScaleFleet(dict(wanted))]

    def dismissals(self) -> list[Command]:
        """Dismiss accelerators that are not wanted and hold nothing."""
        if not self._state.elastic:
            return []
        excess = self._there() - self._wanted
        used = {p.gpu for p in self._state.target.partitions}
        used |= {live.gpu for live in self._state.partitions.values()}
        commands: list[Command] = []
        for gpu in reversed(self._state.fleet.gpus):
            if excess[gpu.kind] > 0 and gpu.id not in used:
                excess[gpu.kind] -= 1
                self._departing[gpu.id] = gpu
                self._without(gpu.id)
                commands.append(DismissGpu(gpu.id))
        return commands

    def _there(self) -> Counter[str]:
        return Counter(gpu.kind for gpu in self._state.fleet.gpus)

    def _spare(self) -> list[Gpu]:
        return [*self._state.reserve.values(), *self._departing.values()]

    def _without(self, gpu: str) -> None:
        fleet = self._state.fleet
        self._state.fleet = Fleet(tuple(g for g in fleet.gpus if g.id != gpu))
