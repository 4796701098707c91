"""What is simulated of a fleet: its nodes, its routers, what is late, what is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from random import Random

from interlace.core.node import NodeDescription
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profiles
from interlace.device.simulated.device import SimulatedDevice
from interlace.policy.base import System
from interlace.routing.routes import Draw, RoutingLimits, by_pace
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
    kind, and hosts the models that are known there.
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


#: Told now and then how far a run has come: the part of it, from 0 to 1.
OnProgress = Callable[[float], None]
