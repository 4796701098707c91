"""What is simulated: a system, its accelerators, what it believes and what is true, a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile, Profiles
from interlace.device.base import Device
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.running_batches import Timer
from interlace.policy.base import System
from interlace.sim.apps import SimulatedApp
from interlace.sim.arrivals import Arrivals
from interlace.sim.provider import Reserve

#: Makes the device that stands for an accelerator, from its true profiles.
MakeDevice = Callable[[Gpu, Timer, Profiles], Device]


@dataclass(frozen=True, slots=True)
class Simulation:
    """One run. Planners and dispatchers know the profiles ``belief``; devices follow ``truth``.

    With ``plan`` the system's planner is not asked. ``warm_ms`` pass before the trace begins, in
    which partitions are carved and models loaded.

    Raises:
        ValueError: an app has a model's name, or a stage whose model is not in ``demand``.
    """

    system: System
    fleet: Fleet
    demand: tuple[Demand, ...]
    belief: Mapping[str, Profile]
    truth: Mapping[str, Profile]
    arrivals: Arrivals
    plan: Plan | None = None
    device: MakeDevice = field(default=SimulatedDevice)
    warm_ms: float = 30_000.0
    queue_limit: int = 65_536
    #: ms between looks at the rates; infinite for a plan that is kept
    epoch_ms: float = 1000.0
    #: virtual time that making a plan takes
    plan_ms: float = 0.0
    #: accelerators that can be had; none where the fleet stays as it is
    reserve: Reserve | None = None
    #: apps by name; ``arrivals`` of these names begin one, those of models are plain requests
    apps: Mapping[str, SimulatedApp] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {one.model for one in self.demand}
        for name, app in self.apps.items():
            if name in known:
                raise ValueError(f"'{name}' is both an app and a model")
            if missing := sorted({*app.app.members} - known):
                raise ValueError(f"app '{name}' has a stage of '{missing[0]}', which has no demand")
