"""What is simulated: a system, its accelerators, what it believes and what is true, a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile, Profiles
from interlace.device.base import Device
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.running_batches import Timer
from interlace.policy.base import System
from interlace.runtime.clock import Clock
from interlace.runtime.runtime import Runtime
from interlace.sim.apps import SimulatedApp
from interlace.sim.arrivals import Arrivals


@dataclass(frozen=True, slots=True)
class Reserve:
    """Accelerators that can be had beyond those that are there.

    Each comes ``delay_ms`` after it was asked for: minutes for a machine of a cloud, nothing for
    one that stands idle.
    """

    gpus: tuple[Gpu, ...]
    delay_ms: float


class SimulatedProvider:
    """Brings accelerators of a reserve, and takes back what is dismissed, whichever it was."""

    def __init__(self, reserve: Reserve, clock: Clock, device: Callable[[Gpu], Device]) -> None:
        self._clock = clock
        self._device = device
        self._delay_ms = reserve.delay_ms
        self._spare: list[Gpu] = list(reserve.gpus)
        self._coming: dict[str, tuple[Gpu, float]] = {}
        self._going: set[str] = set()

    def scale(self, wanted: Mapping[str, int], host: Runtime) -> None:
        """Order what is missing; cancel orders that are not needed any more, the last first."""
        coming = [gpu for gpu, _ in self._coming.values()]
        missing = Counter(wanted)
        missing.subtract(gpu.kind for gpu in host.gpus if gpu.id not in self._going)
        missing.subtract(gpu.kind for gpu in coming)
        for gpu in list(self._spare):
            if missing[gpu.kind] > 0:
                missing[gpu.kind] -= 1
                self._order(gpu, host)
        for gpu in reversed(coming):
            if missing[gpu.kind] < 0:
                missing[gpu.kind] += 1
                del self._coming[gpu.id]
                self._spare.insert(0, gpu)

    def dismiss(self, gpu: str, host: Runtime) -> None:
        """Take one that is empty, and have it in reserve again."""
        self._going.add(gpu)
        self._clock.call_soon(lambda: self._take(gpu, host))

    def _order(self, gpu: Gpu, host: Runtime) -> None:
        self._spare.remove(gpu)
        at_ms = self._clock.now_ms() + self._delay_ms
        self._coming[gpu.id] = (gpu, at_ms)
        self._clock.call_at(at_ms, lambda: self._bring(gpu, at_ms, host))

    def _bring(self, gpu: Gpu, at_ms: float, host: Runtime) -> None:
        if self._coming.get(gpu.id) != (gpu, at_ms):
            return  # cancelled, and perhaps ordered again
        del self._coming[gpu.id]
        host.join(self._device(gpu))

    def _take(self, gpu: str, host: Runtime) -> None:
        self._going.discard(gpu)
        there = {one.id: one for one in host.gpus}
        if gpu in there:  # else it was lost meanwhile
            self._spare.append(there[gpu])
            host.leave(gpu)


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
