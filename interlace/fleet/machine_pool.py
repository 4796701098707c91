"""Machines of a fleet on order: how many it should have, and which are emptied and given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final

from interlace.core.errors import ServeError
from interlace.fleet.controller import Controller
from interlace.fleet.kinds import HIGH_LOAD, TARGET_LOAD
from interlace.fleet.ray_nodes import RayNodes
from interlace.fleet.service import FleetService
from interlace.fleet.status import PlannedFleet


@dataclass(slots=True)
class MachineScaling:
    """Grows as soon as the load has been high for a moment, shrinks after it was low for long.

    Above ``HIGH_LOAD`` a fleet grows by as many machines as it takes to reach ``TARGET_LOAD``. It
    shrinks by one machine if the others then stay below ``TARGET_LOAD``. So changes end under a
    constant load (Kubernetes' HorizontalPodAutoscaler, with a gap between both thresholds).
    """

    most: int  #: machines; one at least
    grow_after_ms: float = 15_000.0
    shrink_after_ms: float = 60_000.0
    _high_since_ms: float = inf
    _low_since_ms: float = inf

    def short(self, load: float) -> bool:
        """Whether a fleet at this load has too few machines."""
        return load > HIGH_LOAD

    def wanted(self, load: float, machines: int, now_ms: float) -> int:
        """Machines to have from now on, where ``machines`` serve at a ``load`` of 1 if full."""
        fit = max(1, min(ceil(machines * load / TARGET_LOAD - 1e-9), self.most))
        grows = self.short(load) and fit > machines
        self._high_since_ms = min(self._high_since_ms, now_ms) if grows else inf
        self._low_since_ms = min(self._low_since_ms, now_ms) if fit < machines else inf
        if now_ms - self._high_since_ms >= self.grow_after_ms:
            return fit
        if now_ms - self._low_since_ms >= self.shrink_after_ms:
            self._low_since_ms = inf
            return machines - 1
        return machines


_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 1.0
#: How often it is asked how much room there is: a plan is made for that.
_PLAN_MS: Final = 15_000.0


@dataclass(slots=True)
class MachineScaler:
    """Has a pool bring machines for a fleet, and gives it back those that are drained."""

    _service: FleetService
    _pool: RayNodes
    _scaling: MachineScaling
    _leaving: str | None = None  #: the node that is being emptied, to be given back
    _emptied: set[str] = field(default_factory=set)  #: that, and those that were
    _due_ms: float = 0.0  #: when it is next seen how much room there is

    async def run(self) -> None:
        """Look once a second; never ends."""
        while True:
            self.look(asyncio.get_running_loop().time() * 1000.0)
            await asyncio.sleep(_LOOK_S)

    def look(self, now_ms: float) -> None:
        """Give back what is empty, and now and then see how much room there is."""
        controller = self._service.controller
        if controller is None or not controller.plan.partitions:
            return
        if self._leaving is not None and self._service.drained(self._leaving):
            _LOG.info("node %s is empty: its machine is given back", self._leaving)
            self._pool.give_back(self._leaving)
            self._leaving = None
            self._pool.want(len(controller.nodes))
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + _PLAN_MS
            nodes = list(controller.nodes)
            controller.would_plan({}, (), lambda planned: self._seen(planned, nodes, now_ms))

    def _seen(self, planned: PlannedFleet, nodes: Sequence[str], now_ms: float) -> None:
        """Rates may grow by the plan's headroom: ask for machines, or take one out of service."""
        controller = self._service.controller
        if controller is None or list(controller.nodes) != nodes or not planned.headroom:
            return
        used = sum(planned.nodes[name].used > 0 for name in nodes)
        load = used / len(nodes) / planned.headroom  # what nothing is planned for bears none
        wanted = self._scaling.wanted(load, len(nodes), now_ms)
        if wanted > len(nodes):
            self._pool.want(wanted)
            self._leaving = None
            for node in self._emptied:
                with suppress(ServeError):  # it is not there any more
                    self._service.undrain(node)
            self._emptied.clear()
        elif wanted < len(nodes) and self._leaving is None:
            self._empty_one(sorted(nodes, key=lambda name: _worth(controller, name)))

    def _empty_one(self, nodes: Sequence[str]) -> None:
        """Take the first of these nodes out of service that the others can do without."""
        controller = self._service.controller
        if controller is None or not nodes:
            return
        first, *others = nodes

        def seen(planned: PlannedFleet) -> None:
            if controller is not self._service.controller or first not in controller.nodes:
                return
            room = planned.headroom or 0.0
            if planned.unserved_rows_per_s or not room or self._scaling.short(1.0 / room):
                self._empty_one(others)
                return
            _LOG.info("fewer machines do: node %s is drained", first)
            self._leaving = first
            self._emptied.add(first)
            self._service.drain(first)

        controller.would_plan({}, (first,), seen)


def _worth(controller: Controller, node: str) -> tuple[int, float, str]:
    """What it is to have a node: those with fewest models go first, of these the dearest."""
    assignment = controller.assignment(node)
    models = 0 if assignment is None else len(assignment.models)
    return models, -controller.node_price(node), node
