"""The simulated twin of this machine's cores, and how far it is from the live run.

Its trace is the live one, in virtual time, at the very times at which that sent it.
"""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.fidelity.measured import Measured, Samples, halves, sampled
from bench.fidelity.stand import Stand
from interlace.core.hardware import Fleet
from interlace.core.plan import Demand, Plan
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.request import Outcome
from interlace.device.simulated.device import device_factory
from interlace.device.simulated.physics import MECHANISMS, Physics
from interlace.perf.latency import surface
from interlace.policy.base import System
from interlace.sim.arrivals import Arrivals
from interlace.sim.record import RunRecord
from interlace.sim.run import simulate
from interlace.sim.scenario import MakeDevice, Simulation

_ANSWERED = (Outcome.OK, Outcome.LATE)


@dataclass(frozen=True, slots=True)
class Figures:
    """Replies in time per second, and latency of what was answered, over all models."""

    goodput_rps: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Simulated over live, less 1; the sign says which way the simulator errs."""

    goodput: float
    p50: float
    p99: float


def figures(record: RunRecord) -> Figures:
    """A run's figures. Latencies are of answered requests; too few answers give NaN."""
    seconds = (record.until_ms - record.from_ms) / 1000.0
    in_time = sum(one.outcome is Outcome.OK for one in record.served)
    taken_ms = [o.answered_ms - o.arrived_ms for o in record.served if o.outcome in _ANSWERED]
    if not taken_ms:
        return Figures(in_time / seconds, float("nan"), float("nan"))
    p50_ms, p99_ms = np.percentile(taken_ms, (50, 99))
    return Figures(in_time / seconds, float(p50_ms), float(p99_ms))


def gap(live: Figures, simulated: Figures) -> Gap:
    """The relative errors of the three figures."""
    return Gap(
        simulated.goodput_rps / live.goodput_rps - 1,
        simulated.p50_ms / live.p50_ms - 1,
        simulated.p99_ms / live.p99_ms - 1,
    )


def simulated_device(measured: Measured) -> MakeDevice:
    """A device that takes what was measured: medians, their spread, and busy neighbours."""
    physics = Physics(costs=MECHANISMS["cores"], interference=measured.pairs, jitter=True, seed=1)
    return device_factory(physics)


async def busy(stand: Stand, seconds: float = 2.0) -> Mapping[str, Samples]:
    """Executions of all models in turn on both halves at once: the machine's speed at the moment.

    The cores are a guest's on a host with others; their speed moves by tens of percent within
    minutes. It is looked at just before and just after a run, never in it. In turn, since a model
    that follows another finds the caches full of that one's weights, as it does when serving.
    """
    models = list(stand.opened.values())
    async with halves(stand) as names:
        one, other = await asyncio.gather(*(sampled(stand, n, models, seconds) for n in names))
    return {key: {rows: [*one[key][rows], *other[key][rows]] for rows in one[key]} for key in one}


def at_the_moment(
    measured: Measured, looks: Sequence[Mapping[str, Samples]], share_pct: int
) -> Mapping[str, Profile]:
    """The profiles at the speed and with the spread that looks around a run saw on that share."""
    return {
        key: _moved(
            profile, [one[key] for one in looks], measured.pairs.factors[key, key], share_pct
        )
        for key, profile in measured.profiles.items()
    }


def _moved(profile: Profile, looks: Sequence[Samples], beside: float, share_pct: int) -> Profile:
    """A profile's medians times the drift; its quantiles as far above them as was seen."""
    expected = surface(profile, "median_ms")
    speeds, spreads = [], []
    for look in looks:
        for rows, taken_ms in look.items():
            median_ms = statistics.median(taken_ms)
            speeds.append(median_ms / (expected.latency_ms(rows, share_pct) * max(1.0, beside)))
            spreads.append(np.percentile(taken_ms, (95, 99)) / median_ms)
    drift, (p95, p99) = statistics.mean(speeds), np.mean(spreads, axis=0)
    points = {
        key: _point(point, point.median_ms * drift, float(p95), float(p99))
        for key, point in profile.points.items()
    }
    return replace(profile, points=points)


def _point(point: LatencyPoint, median_ms: float, p95: float, p99: float) -> LatencyPoint:
    return replace(point, median_ms=median_ms, p95_ms=median_ms * p95, p99_ms=median_ms * p99)


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
