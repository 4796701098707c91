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
from interlace.planning.promise import kept_plan
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
    scenario: Scenario, system: System, settings: SimulationSettings, fleet: NodesAsked
) -> FleetSimulation:
    """The scenario on ``settings.gpus`` accelerators, equally many at each node.

    Without a number, the fewest that the system plans for, rounded up.

    Raises:
        InputError: they cannot be parted equally, or a loss is of no node.
    """
    demand, count = at_load(scenario, settings), settings.gpus
    if count is None:
        count = max(1, len(kept_plan(replace(scenario, demand=demand), system, 1).fleet.gpus))
        count = ceil(count / fleet.nodes) * fleet.nodes
    if count % fleet.nodes:
        raise InputError(f"--gpus {count} on --nodes {fleet.nodes}: expected equally many on each")
    own = tuple(replace(scenario.gpu, id=f"gpu{i}") for i in range(count // fleet.nodes))
    physics = replace(scenario_physics(scenario), jitter=settings.jitter, seed=settings.seed)
    try:
        return FleetSimulation(
            system,
            _nodes(fleet.nodes, own),
            demand,
            belief=scenario.busy_profiles,
            truth=scenario.truth or scenario.profiles,
            arrivals=trace(scenario, settings),
            routers=fleet.routers,
            losses=fleet.losses,
            device=device_factory(physics),
            seed=settings.seed,
        )
    except ValueError as error:
        raise InputError(f"--lose: {error}") from None


def _nodes(count: int, gpus: Sequence[Gpu]) -> tuple[NodeDescription, ...]:
    return tuple(
        NodeDescription(f"node{i}", f"zone{i}", 1, __version__, True, tuple(gpus))
        for i in range(count)
    )
