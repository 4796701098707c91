"""`interlace fleet simulate`: a scenario's requests through routers to the nodes of a fleet."""

from __future__ import annotations

from math import inf
from typing import Annotated

import typer
from rich.console import Console

from interlace.cli.options import Json, ScenarioFile, SystemName, positive
from interlace.cli.progress import ProgressBar
from interlace.cli.screen import FoldingTable, console
from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.rendering import json_text
from interlace.core.tables import counted
from interlace.fleet.simulation.run import FleetReport, fleet_report, simulate_fleet
from interlace.fleet.simulation.scenario import NodesAsked, fleet_simulation, parse_loss
from interlace.planning.scenario import read_scenario
from interlace.planning.simulation import SimulationSettings
from interlace.policy.catalog import system_of

_Gpus = Annotated[
    int | None,
    typer.Option(help="GPUs of all nodes together.  [default: the fewest that the system plans]"),
]
_Lose = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NODE@S[:KIND][+S]",
        help="Lose a node at second S by die, hang or cut; +S: back S seconds later.",
    ),
]
_Kind = Annotated[
    str | None,
    typer.Option(
        metavar="KIND[,KIND]",
        help=f"Kinds of GPU, not the file's; several go to nodes in turn: {', '.join(GPU_KINDS)}.",
    ),
]


def simulate(
    target: ScenarioFile,
    nodes: Annotated[int, typer.Option(help="Number of nodes: node0, node1, ...")] = 3,
    gpus: _Gpus = None,
    routers: Annotated[
        int, typer.Option(help="Number of routers, which get requests in turn.")
    ] = 1,
    lose: _Lose = None,
    system: SystemName = "interlace",
    seconds: Annotated[float, typer.Option(help="Length of the trace in seconds.")] = 20.0,
    load: Annotated[float, typer.Option(help="Factor on every rate.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    gpu: _Kind = None,
    as_json: Json = False,
) -> None:
    """Simulate a scenario's requests on a fleet in virtual time.

    Controller, routers and nodes run the code that serves; messages take time. A lost node dies,
    hangs or is cut off from the network.

    \b
    Examples:
      interlace fleet simulate examples/planning/nine.toml --gpu a100 --gpus 6 --routers 2
      interlace fleet simulate examples/planning/nine.toml --gpu a100 --gpus 6 --lose node1@5:hang+2
      interlace fleet simulate examples/planning/kinds.toml --gpu 2080ti,a100 --gpus 4 --nodes 2
    """
    counts = {"--nodes": nodes, "--gpus": gpus, "--routers": routers}
    positive({"--seconds": seconds, "--load": load, **counts})
    asked = NodesAsked(nodes, routers, tuple(map(parse_loss, lose or ())))
    settings = SimulationSettings(seconds, load, seed, gpus)
    row = system_of(system)
    kinds = gpu.split(",") if gpu else [None]
    scenarios = [read_scenario(target, kind) for kind in kinds]
    simulation = fleet_simulation(scenarios, row, settings, asked)
    with ProgressBar(console(stderr=True)) as bar:
        record = simulate_fleet(simulation, lambda part: bar.update(row.name, part, 1, ""))
    found = fleet_report(record)
    if as_json:
        typer.echo(json_text(found))
        return
    count = sum(len(node.gpus) for node in simulation.nodes)
    parts = counted(nodes, "node"), counted(count, "GPU"), counted(routers, "router")
    _show(console(), found, ", ".join(parts))


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
        f"the first plan stood after {found.settled_ms:.0f} ms; {counted(found.plans, 'plan')}, "
        f"{counted(found.orders, 'order')}, {counted(found.cuts, 'partition')} made, "
        f"{counted(found.moves, 'model')} loaded"
    )
    if not found.losses:
        return
    made = FoldingTable(
        ("node", "lost"), ("at s", "noticed after ms", "planned and loaded after ms")
    )
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
