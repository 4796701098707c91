"""The simulated twin of this machine's cores."""

from __future__ import annotations

from bench.fidelity.measured import Measured
from interlace.device.simulated import MECHANISMS, Physics, made_of
from interlace.sim.scenario import MakeDevice


def simulated_device(measured: Measured) -> MakeDevice:
    """A device that takes what was measured: medians, their spread, and busy neighbours."""
    physics = Physics(costs=MECHANISMS["cores"], interference=measured.pairs, jitter=True, seed=1)
    return made_of(physics)
