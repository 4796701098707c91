"""What is simulated of a fleet: nodes, routers, delays and losses; read from a scenario."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import ceil, inf
from random import Random
from typing import Final

from interlace.core.hardware import Gpu
from interlace.core.node import NodeDescription, NodeModel
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.core.user_errors import InputError
from interlace.core.version import __version__
from interlace.device.simulated.device import SimulatedDevice, device_factory
from interlace.planning.plan_search import search_plan
from interlace.planning.scenario import Scenario
from interlace.planning.simulation import SimulationSettings, trace
from interlace.planning.trial import scenario_physics
from interlace.policy.base import System
from interlace.routing.routes import Draw, RoutingLimits, by_pace
from interlace.sim.apps import SimulatedApp
from interlace.sim.arrivals import Arrivals
from interlace.sim.scenario import MakeDevice


class LossKind(Enum):
    """How a node is lost."""

    DIE = "die"  #: its process ends, its connections are closed; it begins anew, empty
    HANG = "hang"  #: it stands still and keeps what it has; it goes on where it was
    CUT = "cut"  #: it goes on, and nothing comes or leaves


@dataclass(frozen=True, slots=True)
class Loss:
    """A node is lost ``at_ms`` after the trace began, and is back ``back_ms`` later."""

    node: str
    at_ms: float
    kind: LossKind = LossKind.DIE
    back_ms: float = inf


@dataclass(frozen=True, slots=True)
class RateChange:
    """An order to the controller to plan for other rates, ``at_ms`` after the trace began."""

    at_ms: float
    demand: tuple[Demand, ...]


@dataclass(frozen=True, slots=True)
class Delays:
    """How long messages are under way to or from a node, one way, in ms."""

    news_ms: float = 0.5
    order_ms: float = 0.5
    request_ms: float = 0.1


def drawn_by(seed: int, router: int) -> Draw:
    """One of several equal nodes at random, for each router otherwise."""
    return by_pace(Random(f"{seed}/{router}").choices)


@dataclass(frozen=True, slots=True)
class FleetSimulation:
    """One run of a fleet; ``belief``, ``truth`` and ``arrivals`` as in ``sim.scenario.Simulation``.

    What is believed and true of models is by kind of accelerator; a node has accelerators of one
    kind, and hosts the models that are known there. Requests of ``apps`` arrive by their names.
    The trace begins when the first plan stands on every node, or after ``warm_ms`` if it does not.
    Each request comes to one of ``routers``, in turns. The first plan is made for all nodes;
    ``plan_ms`` of virtual time pass from a question to its plan. With ``plan`` the system's planner
    is not asked for the first.
    """

    system: System
    nodes: tuple[NodeDescription, ...]
    demand: tuple[Demand, ...]
    belief: Mapping[str, Profiles]
    truth: Mapping[str, Profiles]
    arrivals: Arrivals
    routers: int = 1
    apps: Mapping[str, SimulatedApp] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    changes: tuple[RateChange, ...] = ()
    delays: Delays = field(default_factory=Delays)
    limits: RoutingLimits = field(default_factory=RoutingLimits)
    plan: Plan | None = None
    device: MakeDevice = field(default=SimulatedDevice)
    warm_ms: float = 30_000.0
    plan_ms: float = 500.0
    epoch_ms: float = 1000.0
    queue_limit: int = 65_536
    seed: int = 0
    draw: Callable[[int, int], Draw] = drawn_by  #: of ``seed`` and the number of a router

    @property
    def slos_ms(self) -> dict[str, float]:
        """Of all models and apps."""
        slos_ms = {one.model: one.slo_ms for one in self.demand}
        return slos_ms | {name: one.slo_ms for name, one in self.apps.items()}

    def models(self, demand: Iterable[Demand], kind: str) -> dict[str, NodeModel]:
        """Those of these models that are known on a kind of accelerator, as nodes tell them."""
        known, members = self.belief[kind], {n: a.app.members for n, a in self.apps.items()}
        return {
            one.model: NodeModel(
                one,
                "",
                known[one.model],
                {name: tuple(who) for name, who in members.items() if one.model in who},
            )
            for one in demand
            if one.model in known
        }

    def __post_init__(self) -> None:
        """Check the names of nodes, and their kinds.

        Raises:
            ValueError: a loss is of a node that is not there, two nodes have one name, or nothing
                is known of any model on a node.
        """
        names = [node.name for node in self.nodes]
        if len(set(names)) < len(names):
            raise ValueError("two nodes have one name")
        for node in self.nodes:
            if node.gpus[0].kind not in self.belief.keys() & self.truth.keys():
                raise ValueError(f"no model has a profile on {node.gpus[0].kind} ({node.name})")
        for loss in self.losses:
            if loss.node not in names:
                raise ValueError(f"no node '{loss.node}' can be lost: there are {', '.join(names)}")


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
    loaded, count = scenario.times(settings.load), settings.gpus
    if others and (count is None or fleet.nodes < len(scenarios)):
        kinds = ", ".join(one.gpu.kind for one in scenarios)
        raise InputError(
            f"kinds {kinds}: say how many --gpus there are, on as many --nodes or more"
        )
    if count is None:
        count = max(1, len(search_plan(loaded, system, 1).fleet.gpus))
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
            loaded.demand,
            belief={one.gpu.kind: one.busy_profiles for one in scenarios},
            truth={one.gpu.kind: one.truth or one.profiles for one in scenarios},
            arrivals=trace(scenario, settings),
            routers=fleet.routers,
            apps={name: one.simulated for name, one in loaded.apps.items()},
            losses=fleet.losses,
            device=lambda gpu, timer, truth: devices[gpu.kind](gpu, timer, truth),
            seed=settings.seed,
        )
    except ValueError as error:
        raise InputError(f"--lose: {error}") from None


def _node(number: int, gpus: Sequence[Gpu]) -> NodeDescription:
    return NodeDescription(f"node{number}", f"zone{number}", 1, __version__, True, tuple(gpus))
