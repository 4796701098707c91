"""The simulated twin of this machine's cores."""

from __future__ import annotations

from bench.fidelity.measured import Measured
from interlace.core.hardware import Gpu
from interlace.core.profile import Profiles
from interlace.device.base import Device
from interlace.device.simulated import SimulatedDevice, Timer
from interlace.sim.scenario import MakeDevice


def simulated_device(measured: Measured) -> MakeDevice:
    """A device that takes what was measured: medians, their spread, and busy neighbours."""

    def make(gpu: Gpu, timer: Timer, truth: Profiles) -> Device:
        return SimulatedDevice(gpu, timer, truth)

    return make
