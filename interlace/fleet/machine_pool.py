"""Machines of a fleet on order: more are asked for under load, and emptied before they go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from interlace.core.errors import ServeError
from interlace.fleet.controller import Controller
from interlace.fleet.machine_scaling import MachineScaling
from interlace.fleet.planned_fleet import PlannedFleet
from interlace.fleet.service import FleetService

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 1.0
#: How often it is asked how much room there is: a plan is made for that.
_PLAN_MS: Final = 15_000.0


class MachinePool(Protocol):
    """Where machines come from and go to, as Ray's autoscaler."""

    def want(self, machines: int) -> None:
        """So many are to be there, all in all; where more than before, given back ones count."""
        ...

    def give_back(self, node: str) -> None:
        """The machine of this node, which takes nothing any more, may be taken away."""
        ...


class MachineScaler:
    """Has a pool bring machines for a fleet, and gives it back those that are drained."""

    def __init__(self, service: FleetService, pool: MachinePool, scaling: MachineScaling) -> None:
        self._service = service
        self._pool = pool
        self._scaling = scaling
        self._leaving: str | None = None  #: the node that is being emptied, to be given back
        self._emptied: set[str] = set()  #: that, and those that were
        self._due_ms = 0.0  #: when it is next seen how much room there is

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
