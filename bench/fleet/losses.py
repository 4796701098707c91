"""Nodes lost again and again under load, in virtual time: what is noticed, planned anew, and lost.

The code that decides is the one that serves; nodes die, hang and are cut off in turns. Plans are
the packer's, which takes a fraction of the planner's time. Accelerators are cut by green contexts:
where a cut takes seconds, the next node is lost before anything stands again.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Annotated

from bench.harness import Report, Table, main
from interlace.device.simulated.device import device_factory
from interlace.device.simulated.physics import MECHANISMS
from interlace.fleet.simulation.run import fleet_report, simulate_fleet
from interlace.fleet.simulation.scenario import Loss, LossKind, NodesAsked, fleet_simulation
from interlace.planning.scenario import read_scenario
from interlace.planning.simulation import SimulationSettings
from interlace.planning.trial import scenario_physics
from interlace.policy.catalog import resolve

_SCENARIO = "examples/planning/nine.toml"
_EVERY_S = 3.0
_BACK_S = 1.0


def losses(
    *,
    times: Annotated[int, "that a node is lost"] = 50,
    nodes: int = 3,
    gpus: Annotated[int, "of each node"] = 1,
    routers: int = 2,
    load: Annotated[float, "of the rates of examples/planning/nine.toml"] = 0.5,
    seed: int = 0,
) -> Report:
    """Noticed, replanned, lost, late."""
    kinds = cycle(LossKind)
    lost = tuple(
        Loss(f"node{i % nodes}", 1000.0 * (1.0 + _EVERY_S * i), next(kinds), 1000.0 * _BACK_S)
        for i in range(times)
    )
    settings = SimulationSettings(_EVERY_S * times + 1.0, load, seed, nodes * gpus)
    row = resolve("interlace")
    asked = read_scenario(_SCENARIO, "a100")
    green = replace(scenario_physics(asked), costs=MECHANISMS["green"])
    scenario = replace(
        fleet_simulation(
            [asked], replace(row, planner=row.packer), settings, NodesAsked(nodes, routers, lost)
        ),
        device=device_factory(green),
    )
    record = simulate_fleet(scenario)
    found = fleet_report(record)
    cells: list[list[str | float | int | None]] = []
    for kind in LossKind:
        of_kind = [one for one in found.losses if one.kind == kind.value]
        noticed_ms = sorted(one.noticed_ms for one in of_kind)
        replanned_ms = sorted(one.replanned_ms for one in of_kind)
        cells.append(
            [kind.value, len(of_kind), noticed_ms[len(of_kind) // 2], noticed_ms[-1],
             replanned_ms[len(of_kind) // 2], replanned_ms[-1]]
        )  # fmt: skip
    heads = ["lost by", "times", "noticed, median ms", "most", "stands again, median ms", "most"]
    unanswered = len(scenario.arrivals) - found.requests
    requests = Table(
        ["requests", "without an answer", "in time", "other", "tried elsewhere"],
        [[found.requests, unanswered, found.requests - found.broken,
          ", ".join(f"{name} {n}" for name, n in sorted(found.outcomes.items()) if name != "ok"),
          found.retried]],
    )  # fmt: skip
    broken = [f"{unanswered} requests have no answer"] if unanswered else []
    return Report(tables=[Table(heads, cells), requests], figures=found.plain(), broken=broken)


if __name__ == "__main__":
    main(losses)
