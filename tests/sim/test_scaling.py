"""Accelerators come when they are needed, go when they are empty, and nothing is lost meanwhile."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from bench.hosting_gaps import Gaps
from interlace.core.gpu_kinds import GPU_KINDS, uniform_fleet
from interlace.core.hardware import Fleet, Gpu
from interlace.core.messages import (
    Command,
    DismissGpu,
    Event,
    GpuJoined,
    GpuLeft,
    Load,
    Run,
    ScaleFleet,
)
from interlace.core.plan import Demand, Plan
from interlace.core.request import Outcome
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.physics import MechanismCosts
from interlace.engine.engine import Engine
from interlace.policy.catalog import resolve
from interlace.runtime.clock import SimClock
from interlace.runtime.runtime import FixedGpuProvider
from interlace.sim.arrivals import Arrivals, Times, merge_arrivals
from interlace.sim.record import RunRecord
from interlace.sim.run import simulate
from interlace.sim.scenario import Reserve, SimulatedProvider, Simulation
from tests.builders import World, line_profile

PROFILES = {
    name: line_profile(name, 40.0 + 10.0 * index, 20.0, speedup=0.5)
    for index, name in enumerate("ab")
}
GPUS = uniform_fleet(replace(GPU_KINDS["2080ti"], shares_pct=(50, 100)), 5).gpus
DEMAND = tuple(Demand(name, 8.0, 600.0) for name in PROFILES)
Log = list[tuple[float, Event, list[Command]]]


@dataclass(frozen=True, slots=True)
class Steps:
    """Poisson arrivals at one rate after the other, each for as long."""

    rates_rps: tuple[float, ...]

    def __call__(self, seconds: float, random: np.random.Generator) -> Times:
        each_ms = seconds * 1000.0 / len(self.rates_rps)
        parts = [
            index * each_ms + random.uniform(0.0, each_ms, random.poisson(rate * each_ms / 1000.0))
            for index, rate in enumerate(self.rates_rps)
        ]
        return np.sort(np.concatenate(parts))


def _arrivals(*rates_rps: float, seconds: float) -> Arrivals:
    return merge_arrivals({name: Steps(rates_rps) for name in PROFILES}, seconds, seed=3)


def _run(
    name: str, arrivals: Arrivals, delay_ms: float, carve_ms: float = 1_000.0
) -> tuple[RunRecord, Log, Gaps]:
    row, there = resolve(name), Fleet(GPUS[:1])
    reserve = Reserve(GPUS[1:], delay_ms)
    log: Log = []
    gaps = Gaps(Engine(there, row, reserve.gpus))
    scenario = Simulation(
        row,
        there,
        DEMAND,
        PROFILES,
        PROFILES,
        arrivals,
        device=lambda gpu, timer, truth: SimulatedDevice(
            gpu, timer, truth, MechanismCosts(carve_ms)
        ),
        reserve=reserve,
        plan_ms=50.0,
    )
    observe = [lambda now, event, commands: log.append((now, event, list(commands))), gaps]
    return simulate(scenario, observe), log, gaps


def test_without_a_reserve_nobody_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    moved = {"a": Steps((8.0, 60.0)), "b": Steps((8.0, 1.0))}
    row, there = resolve("interlace"), Fleet(GPUS[:1])
    short = replace(row.planner(DEMAND, there, PROFILES, Plan()), unserved_rows_per_s={"a": 50.0})
    asked: list[Command] = []
    simulate(
        Simulation(row, there, DEMAND, PROFILES, PROFILES, merge_arrivals(moved, 60.0, 3), short),
        [lambda now, event, commands: asked.extend(commands)],
    )
    assert any(isinstance(one, ScaleFleet) for one in asked)
    assert not caplog.messages


def _there(record: RunRecord, at_ms: float) -> int:
    return sum(one.joined_ms <= at_ms < one.left_ms for one in record.presences)


@pytest.mark.parametrize("delay_ms", [0.0, 5_000.0])
def test_ours_grows_with_the_load_and_shrinks_after_it(delay_ms: float) -> None:
    arrivals = _arrivals(8.0, 70.0, 8.0, seconds=180.0)
    record, log, gaps = _run("interlace", arrivals, delay_ms)
    assert len(record.served) == len(arrivals), "every request is answered, once"
    assert gaps.gaps == [] and gaps.open_gaps == []
    low, high, end = (_there(record, record.from_ms + at * 1000.0) for at in (55.0, 115.0, 179.0))
    assert low == end == 1 and high >= 2
    steady = [
        one for one in record.served if 100_000.0 <= one.arrived_ms - record.from_ms < 120_000.0
    ]
    served = sum(one.outcome is Outcome.OK for one in steady) / len(steady)
    assert served > 0.985, "what was asked for is enough"
    _dismissed_are_empty(log)
    _grows_at_once(log)


def _dismissed_are_empty(log: Log) -> None:
    gone: set[str] = set()
    for _, event, commands in log:
        if isinstance(event, GpuJoined):
            gone.discard(event.gpu.id)
        for command in commands:
            if isinstance(command, DismissGpu):
                gone.add(command.gpu)
            elif isinstance(command, Load | Run):
                assert command.gpu not in gone


def _grows_at_once(log: Log) -> None:
    """More is asked for within seconds of the step; less only after half a minute."""
    scales = [
        (now, sum(c.gpus.values())) for now, _, cs in log for c in cs if isinstance(c, ScaleFleet)
    ]
    first_ms, _ = scales[0]
    assert 90_000.0 < first_ms < 96_000.0
    for (_, before), (at_ms, after) in pairwise(scales):
        if after < before:
            assert at_ms > 150_000.0 + 30_000.0


def test_gpulet_looks_every_20_s_and_plans_for_more_than_it_sees() -> None:
    record, log, _ = _run("gpulet", _arrivals(8.0, 50.0, seconds=120.0), 0.0, 10_000.0)
    scales = [now for now, _, commands in log if any(isinstance(c, ScaleFleet) for c in commands)]
    assert scales and all((at - 50.0) % 20_000.0 == 0.0 for at in scales)
    assert len(record.presences) >= 2


def test_a_replay_of_a_run_with_scaling_is_identical() -> None:
    _, log, _ = _run("interlace", _arrivals(8.0, 50.0, 4.0, seconds=300.0), 2_000.0)
    assert any(isinstance(event, GpuJoined) for _, event, _ in log)
    assert any(isinstance(event, GpuLeft) for _, event, _ in log)
    replayed = Engine(Fleet(GPUS[:1]), resolve("interlace"), GPUS[1:])
    for now_ms, event, commands in log:
        assert replayed.handle(event, now_ms) == commands


def test_from_no_accelerator_at_all_and_what_never_fits_is_told() -> None:
    profiles = {**PROFILES, "vast": line_profile("vast", 500.0, 10.0)}
    world = World(profiles, Fleet(()), reserve=Reserve(GPUS[:1], 1_000.0))
    world.deploy({"a": 600.0, "vast": 60.0}, rows_per_s=10.0)
    request = world.send("a", 5_000.0)
    world.run(3_000.0)
    assert world.reply_of(request).outcome is Outcome.OK
    assert {tell.model: tell.status for tell in world.statuses} == {"a": "ready", "vast": "failed"}


def test_accelerators_that_never_come_are_done_without() -> None:
    world = World(PROFILES, Fleet(GPUS[:1]), reserve=Reserve(GPUS[1:], float("1e12")))
    world.deploy({"a": 600.0, "b": 600.0}, rows_per_s=90.0)
    world.run(100_000.0)
    assert {tell.status for tell in world.statuses} == {"ready"}
    assert world.state.short_since_ms is not None


class _Stand:
    """What a provider sees of a runtime."""

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = list(gpus)

    def join(self, device: SimulatedDevice) -> None:
        self.gpus.append(device.gpu)

    def leave(self, gpu: str) -> None:
        self.gpus = [one for one in self.gpus if one.id != gpu]


def test_an_order_that_is_cancelled_does_not_come_and_can_be_placed_again() -> None:
    clock, stand = SimClock(), _Stand(GPUS[0])
    reserve = Reserve(GPUS[1:3], 100.0)
    provider = SimulatedProvider(reserve, clock, lambda gpu: SimulatedDevice(gpu, clock, PROFILES))
    provider.scale({"2080ti": 3}, stand)
    clock.run(50.0)
    provider.scale({"2080ti": 1}, stand)
    provider.scale({"2080ti": 2}, stand)
    clock.run(149.0)
    assert [gpu.id for gpu in stand.gpus] == ["gpu0"], "the first order was cancelled"
    clock.run(300.0)
    assert [gpu.id for gpu in stand.gpus] == ["gpu0", "gpu1"]
    provider.dismiss("gpu0", stand)
    clock.run(301.0)
    provider.scale({"2080ti": 3}, stand)
    clock.run(500.0)
    assert sorted(gpu.id for gpu in stand.gpus) == ["gpu0", "gpu1", "gpu2"]


def test_where_nothing_can_be_had_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    nothing = FixedGpuProvider()
    for _ in range(2):
        nothing.scale({"cpu": 2}, _Stand())
    (message,) = caplog.messages
    assert message == "overloaded: 2 cpu would meet the demand"
