"""Fleets in virtual time: controller, routers and nodes of the same code, news and orders late."""

from interlace.fleet.simulation.report import FleetReport, fleet_report
from interlace.fleet.simulation.run import FleetRecord, simulate_fleet
from interlace.fleet.simulation.scenario import Delays, FleetSimulation, Loss, LossKind, RateChange

__all__ = [
    "Delays",
    "FleetRecord",
    "FleetReport",
    "FleetSimulation",
    "Loss",
    "LossKind",
    "RateChange",
    "fleet_report",
    "simulate_fleet",
]
