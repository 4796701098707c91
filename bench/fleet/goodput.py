"""What several nodes serve beside so many times one, and beside nodes that are asked in turns.

In virtual time, by the routing that serves. Every node has the plan of one, and the same models, so
that any node may be asked; a node's load is of what its plan was made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from math import inf
from typing import Annotated

from bench.harness import Report, Table, main
from interlace.core.gpu_kinds import uniform_fleet
from interlace.core.plan import Plan
from interlace.fleet.simulation.run import FleetReport, fleet_report, simulate_fleet
from interlace.fleet.simulation.scenario import NodesAsked, fleet_simulation
from interlace.planning.scenario import Scenario, read_scenario
from interlace.planning.simulation import SimulationSettings
from interlace.policy.catalog import resolve
from interlace.routing.believed_node import BelievedNode
from interlace.routing.routes import Draw, RoutingLimits

_SCENARIO = "examples/planning/nine.toml"


def goodput(
    *,
    nodes: int = 3,
    routers: int = 2,
    loads: tuple[float, ...] = (0.7, 0.9, 1.0, 1.2),
    seconds: float = 10.0,
    cv: Annotated[float, "of the times between arrivals"] = 1.0,
    seed: int = 0,
) -> Report:
    """Requests in time, each second."""
    scenario = read_scenario(_SCENARIO, "a100")
    scenario = replace(scenario, demand=tuple(replace(one, cv=cv) for one in scenario.demand))
    plan = resolve("interlace").planner(
        scenario.demand, uniform_fleet(scenario.gpu, 1), scenario.busy_profiles, Plan()
    )
    headroom = plan.headroom
    assert headroom is not None, "the planner of a fixed fleet says what multiple fits"
    cells: list[list[str | float | int | None]] = []
    for load in loads:
        one = _played(scenario, plan, load * headroom, 1, 1, seconds, seed)
        many = _played(scenario, plan, load * headroom, nodes, routers, seconds, seed)
        turns = _played(
            scenario, plan, load * headroom, nodes, routers, seconds, seed, in_turns=True
        )
        cells.append(
            [load, one.goodput_rps, 100 * one.attainment, many.goodput_rps, 100 * many.attainment,
             many.goodput_rps / (nodes * one.goodput_rps), turns.goodput_rps,
             100 * turns.attainment, many.goodput_rps / turns.goodput_rps]
        )  # fmt: skip
        print(cells[-1], flush=True)
    heads = [
        "load", "one node, in time/s", "%", f"{nodes} nodes", "%", f"of {nodes} times one",
        "in turns", "%", "of in turns",
    ]  # fmt: skip
    return Report(
        tables=[Table(heads, cells)], figures=[dict(zip(heads, c, strict=True)) for c in cells]
    )


def _played(
    scenario: Scenario,
    plan: Plan,
    load: float,
    nodes: int,
    routers: int,
    seconds: float,
    seed: int,
    in_turns: bool = False,
) -> FleetReport:
    settings = SimulationSettings(seconds, load * nodes, seed, nodes)
    made = fleet_simulation([scenario], resolve("interlace"), settings, NodesAsked(nodes, routers))
    copied = tuple(
        replace(part, id=f"node{i}.{part.id}", gpu=f"node{i}/gpu0")
        for i in range(nodes)
        for part in plan.partitions
    )
    made = replace(made, plan=replace(plan, partitions=copied), epoch_ms=inf)
    if in_turns:
        made = replace(made, limits=RoutingLimits(equal_ms=inf), draw=_turns)
    return fleet_report(simulate_fleet(made))


def _turns(seed: int, router: int) -> Draw:
    """One node after the other, whatever they say."""
    number = count(router)

    def draw(nodes: Sequence[BelievedNode], model: str) -> BelievedNode:
        return nodes[next(number) % len(nodes)]

    return draw


if __name__ == "__main__":
    main(goodput)
