"""The simulated twin of this machine's cores."""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bench.fidelity.measured import Measured, Samples, halves, sampled
from bench.fidelity.stand import Stand
from interlace.core.profile import LatencyPoint, Profile
from interlace.device.simulated.device import device_factory
from interlace.device.simulated.physics import MECHANISMS, Physics
from interlace.perf.latency import surface
from interlace.sim.scenario import MakeDevice


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
