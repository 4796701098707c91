"""A plan that stays, played by the engine on simulated GPUs: what every paper's figures count."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.device.simulated.device import device_factory
from interlace.device.simulated.physics import Physics
from interlace.policy.base import System
from interlace.sim.arrivals import Arrivals
from interlace.sim.record import RunRecord
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation

_WARM_MS: Final = 1_000.0


def played(
    system: System,
    fleet: Fleet,
    demand: Sequence[Demand],
    profiles: Mapping[str, Profile],
    arrivals: Arrivals,
    plan: Plan,
    physics: Physics | None = None,
    **settings: Any,
) -> RunRecord:
    """One run; beliefs are true, and rates are not looked at, unless ``settings`` of the scenario
    say otherwise."""
    given: dict[str, Any] = {
        "truth": profiles,
        "device": device_factory(physics or Physics()),
        "warm_ms": _WARM_MS,
        "epoch_ms": float("inf"),
        **settings,
    }
    truth = given.pop("truth")
    return simulate(
        Simulation(system, fleet, tuple(demand), profiles, truth, arrivals, plan, **given)
    )
