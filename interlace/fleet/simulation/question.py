"""A scenario as a fleet of nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Final

from interlace.core.hardware import Gpu
from interlace.core.node import NodeDescription
from interlace.core.user_errors import InputError
from interlace.core.version import __version__
from interlace.device.simulated.device import device_factory
from interlace.fleet.simulation.scenario import FleetSimulation, Loss, LossKind
from interlace.planning.plan_search import search_plan
from interlace.planning.scenario import Scenario
from interlace.planning.simulation import SimulationSettings, at_load, trace
from interlace.planning.trial import scenario_physics
from interlace.policy.base import System

_LOSS: Final = re.compile(
    r"(?P<node>[^@]+)@(?P<at>[\d.]+)(:(?P<kind>[a-z]+))?(\+(?P<back>[\d.]+))?"
)


@dataclass(frozen=True, slots=True)
class NodesAsked:
    """``nodes`` named ``node0``, ``node1``, ... in as many zones; requests through ``routers``."""

    nodes: int
    routers: int = 1
    losses: tuple[Loss, ...] = ()


def parse_loss(text: str) -> Loss:
    """A loss as ``NODE@S[:die|hang|cut][+S]``: from when on, how, and for how many seconds.

    Raises:
        InputError: it is no such thing.
    """
    found = _LOSS.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        back_s = float(found["back"]) if found["back"] else inf
        kind = LossKind(found["kind"] or "die")
        return Loss(found["node"], float(found["at"]) * 1000.0, kind, back_s * 1000.0)
    except ValueError:
        raise InputError(
            f"--lose {text}: expected NODE@SECONDS, then :die, :hang or :cut, then +SECONDS until "
            "it is back, as node1@5:hang+2"
        ) from None


def fleet_simulation(
    scenarios: Sequence[Scenario], system: System, settings: SimulationSettings, fleet: NodesAsked
) -> FleetSimulation:
    """A scenario, read for each kind of accelerator, on nodes that have the kinds in turns.

    On ``settings.gpus`` accelerators, equally many at each node. Without a number, the fewest of
    the one kind that the system plans for, rounded up.

    Raises:
        InputError: they cannot be parted equally, a loss is of no node, or there are several kinds
            and no number, or fewer nodes.
    """
    scenario, *others = scenarios
    demand, count = at_load(scenario, settings), settings.gpus
    if others and (count is None or fleet.nodes < len(scenarios)):
        kinds = ", ".join(one.gpu.kind for one in scenarios)
        raise InputError(
            f"kinds {kinds}: say how many --gpus there are, on as many --nodes or more"
        )
    if count is None:
        count = max(1, len(search_plan(replace(scenario, demand=demand), system, 1).fleet.gpus))
        count = ceil(count / fleet.nodes) * fleet.nodes
    if count % fleet.nodes:
        raise InputError(f"--gpus {count} on --nodes {fleet.nodes}: expected equally many on each")
    gpus = [
        [replace(one.gpu, id=f"gpu{i}") for i in range(count // fleet.nodes)] for one in scenarios
    ]
    devices = {
        one.gpu.kind: device_factory(
            replace(scenario_physics(one), jitter=settings.jitter, seed=settings.seed)
        )
        for one in scenarios
    }
    try:
        return FleetSimulation(
            system,
            tuple(_node(i, gpus[i % len(gpus)]) for i in range(fleet.nodes)),
            demand,
            belief={one.gpu.kind: one.busy_profiles for one in scenarios},
            truth={one.gpu.kind: one.truth or one.profiles for one in scenarios},
            arrivals=trace(scenario, settings),
            routers=fleet.routers,
            losses=fleet.losses,
            device=lambda gpu, timer, truth: devices[gpu.kind](gpu, timer, truth),
            seed=settings.seed,
        )
    except ValueError as error:
        raise InputError(f"--lose: {error}") from None


def _node(number: int, gpus: Sequence[Gpu]) -> NodeDescription:
    return NodeDescription(f"node{number}", f"zone{number}", 1, __version__, True, tuple(gpus))
