"""`interlace simulate --nodes`: the same requests through routers to the nodes of a fleet."""

from __future__ import annotations

from math import inf

import typer
from rich.console import Console

from interlace.cli.progress import ProgressBar
from interlace.cli.screen import console, table
from interlace.core.json_text import json_text
from interlace.fleet.simulation import FleetReport, fleet_report, simulate_fleet
from interlace.fleet.simulation.question import FleetSettings, fleet_simulation
from interlace.planning.scenario import Scenario
from interlace.planning.simulation import SimulationSettings
from interlace.policy.base import System


def simulate_nodes(
    scenario: Scenario,
    system: System,
    settings: SimulationSettings,
    fleet: FleetSettings,
    as_json: bool,
) -> None:
    """Play the scenario on a fleet, and show what became of requests and of lost nodes."""
    simulation = fleet_simulation(scenario, system, settings, fleet)
    with ProgressBar(console(stderr=True)) as bar:
        record = simulate_fleet(simulation, lambda part: bar.update(system.name, part, 1, ""))
    found = fleet_report(record)
    if as_json:
        typer.echo(json_text(found.plain()))
        return
    gpus = sum(len(node.gpus) for node in simulation.nodes)
    _show(console(), found, f"{len(simulation.nodes)} nodes, {gpus} GPUs, {fleet.routers} routers")


def _show(out: Console, found: FleetReport, what: str) -> None:
    outcomes = ", ".join(f"{name} {count}" for name, count in sorted(found.outcomes.items()))
    out.print(
        f"{what}: {found.goodput_rps:.1f} of {found.offered_rps:.1f} requests/s in time "
        f"({100 * found.attainment:.2f} %), the worst model {100 * found.worst_attainment:.2f} %"
    )
    out.print(
        f"{found.requests} requests: {outcomes}; {found.retried} were sent to more than one node; "
        f"p50 {found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} ms"
    )
    out.print(
        f"the first plan stood after {found.settled_ms:.0f} ms; {found.plans} plans, "
        f"{found.orders} orders, {found.cuts} partitions made, {found.moves} models loaded"
    )
    if not found.losses:
        return
    made = table(("node", "lost"), ("at s", "noticed after ms", "planned and loaded after ms"))
    for loss in found.losses:
        made.add_row(
            loss.node,
            loss.kind,
            f"{loss.at_s:g}",
            _after(loss.noticed_ms),
            _after(loss.replanned_ms),
        )
    out.print(made)


def _after(ms: float) -> str:
    return f"{ms:.0f}" if ms < inf else "-"
