"""Laws of simulated runs: Little's law, M/D/1, one answer each, the same for equal seeds."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from interlace.core.hardware import Fleet, Gpu
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profile
from interlace.device.simulated.device import device_factory
from interlace.device.simulated.physics import HostCost, HostLink, Physics, Transfer
from interlace.perf.interference import ConstantFactor
from interlace.policy.admission import admit_all
from interlace.policy.catalog import resolve
from interlace.sim.arrivals import merge_arrivals, poisson
from interlace.sim.record import RunRecord
from interlace.sim.run import simulate
from interlace.sim.scenario import Simulation
from tests.builders import line_profile

FLEET = Fleet((Gpu("g0", "test", 2, 10**9, (50, 100)),))


def _single(load: float, seconds: float = 60.0, seed: int = 0) -> RunRecord:
    """One model on one partition, a row at a time, 2 ms each, nothing refused."""
    profile = line_profile("a", 0.0, 2.0, speedup=1.0, max_batch=1)
    rows_per_s = load * 500.0
    demand = Demand("a", rows_per_s, 1e6, max_batch=1)
    plan = Plan((Partition("p", "g0", 100, (Slot("a", 1, rows_per_s),)),))
    one = replace(resolve("temporal"), admission=admit_all)
    arrivals = merge_arrivals({"a": poisson(rows_per_s)}, seconds, seed)
    profiles = {"a": profile}
    return simulate(Simulation(one, FLEET, (demand,), profiles, profiles, arrivals, plan))


@pytest.mark.parametrize(
    "load", [0.6, *(pytest.param(x, marks=pytest.mark.long) for x in (0.3, 0.8))]
)
def test_waiting_times_are_those_of_m_d_1(load: float) -> None:
    """Pollaczek and Khinchine: W = rho s / (2 (1 - rho)) for constant service times s."""
    waits_ms = [one.started_ms - one.arrived_ms for one in _single(load, 120.0).served]
    expected_ms = load * 2.0 / (2.0 * (1.0 - load))
    assert np.mean(waits_ms) == pytest.approx(expected_ms, rel=0.08)


def _littles(record: RunRecord) -> tuple[float, float]:
    """The mean number present, and the arrival rate times the mean time present."""
    arrived = np.array([one.arrived_ms for one in record.served])
    answered = np.array([one.answered_ms for one in record.served])
    changes = np.concatenate([arrived, answered])
    steps = np.concatenate([np.ones(len(arrived)), -np.ones(len(answered))])
    order = np.argsort(changes, kind="stable")
    times, present = changes[order], np.cumsum(steps[order])
    span_ms = times[-1] - times[0]
    mean_present = float(np.sum(present[:-1] * np.diff(times)) / span_ms)
    return mean_present, len(arrived) / span_ms * float(np.mean(answered - arrived))


def test_littles_law() -> None:
    present, expected = _littles(_single(0.7, 20.0))
    assert present == pytest.approx(expected, rel=1e-9)


def _everything_on(seed: int) -> RunRecord:
    """Six workers without limits of two models, with copies, host costs, neighbours and jitter."""
    profiles = {name: _spread(name) for name in ("a", "b")}
    demand = tuple(Demand(name, 100.0, 100.0) for name in profiles)
    parts = tuple(
        Partition(f"{name}{size}", "g0", 100, (Slot(name, size, 30.0),))
        for name in profiles
        for size in (1, 4, 8)
    )
    physics = Physics(
        interference=ConstantFactor(1.1),
        link=HostLink(1_000.0),
        transfers={"a": Transfer(1_000, 100)},
        host=HostCost(launch_ms=0.05, sync_ms=0.1),
        jitter=True,
        seed=seed,
    )
    arrivals = merge_arrivals({name: poisson(100.0) for name in profiles}, 5.0, 0)
    served_by = replace(resolve("temporal"), admission=admit_all)
    plan = Plan(parts, overlapping=True)
    return simulate(
        Simulation(
            served_by,
            FLEET,
            demand,
            profiles,
            profiles,
            arrivals,
            plan,
            device=device_factory(physics),
        )
    )


def _spread(name: str) -> Profile:
    profile = line_profile(name, 1.0, 0.5)
    points = {
        key: replace(p, p95_ms=1.3 * p.median_ms, p99_ms=1.5 * p.median_ms)
        for key, p in profile.points.items()
    }
    return replace(profile, points=points)


def test_with_everything_on_runs_still_keep_the_laws_and_repeat_with_their_seed() -> None:
    first, again, other = _everything_on(1), _everything_on(1), _everything_on(2)
    assert repr(first) == repr(again)
    assert repr(first.executions) != repr(other.executions)
    assert len(first.served) == len(other.served) > 800
    present, expected = _littles(first)
    assert present == pytest.approx(expected, rel=1e-9)
    together = sum(
        one.started_ms < before.ended_ms
        for before, one in pairwise(sorted(first.executions, key=lambda one: one.started_ms))
    )
    assert together > 10  # workers did run side by side
