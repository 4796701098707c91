"""What a controller that runs would plan now, if things were otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from interlace.core.errors import bad_input
from interlace.core.tables import did_you_mean
from interlace.fleet.controller import Controller
from interlace.fleet.planned_fleet import PlannedFleet


async def what_if(
    controller: Controller, rates_rows_per_s: Mapping[str, float], without: Collection[str]
) -> PlannedFleet:
    """The plan for other rates of some models, without some nodes; nothing changes.

    Raises:
        ServeError: there is no such model, or no node is left.
    """
    if not set(controller.nodes) - set(without):
        raise bad_input("without these nodes none is left to plan for")
    for model in rates_rows_per_s.keys() - controller.models.keys():
        hint = did_you_mean(model, controller.models)
        raise bad_input(f"the fleet serves no model '{model}'{hint}")
    found: asyncio.Future[PlannedFleet] = asyncio.get_running_loop().create_future()

    def done(planned: PlannedFleet) -> None:
        if not found.done():  # else whoever asked has gone
            found.set_result(planned)

    controller.would_plan(rates_rows_per_s, without, done)
    return await found
