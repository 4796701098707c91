"""The same trace in virtual time, at the very times at which the live run sent it."""

from collections.abc import Mapping, Sequence

import numpy as np

from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.policy.base import System
from interlace.sim.arrivals import Arrivals
from interlace.sim.record import RunRecord
from interlace.sim.run import simulate
from interlace.sim.scenario import MakeDevice, Simulation


def sent(record: RunRecord, models: Sequence[str], seconds: float) -> Arrivals:
    """The arrivals of a live run as they happened: a loop's timers are late by up to 1 ms."""
    served = sorted(record.served, key=lambda one: one.arrived_ms)
    times_ms = np.array([one.arrived_ms - record.from_ms for one in served])
    index = {model: number for number, model in enumerate(models)}
    which = np.array([index[one.model] for one in served], dtype=np.int32)
    return Arrivals(tuple(models), times_ms, which, seconds)


def twin(
    system: System,
    fleet: Fleet,
    plan: Plan,
    demand: Sequence[Demand],
    believed: Mapping[str, Profile],
    truth: Mapping[str, Profile],
    arrivals: Arrivals,
    device: MakeDevice,
) -> RunRecord:
    """The run as the simulator sees it, with the beliefs that the live run began with."""
    scenario = Simulation(
        system, fleet, tuple(demand), believed, truth, arrivals, plan, device, epoch_ms=float("inf")
    )
    return simulate(scenario)
