"""When a plan is asked for: soon for more, with patience for less, never too often."""

from dataclasses import replace
from itertools import pairwise

import pytest

from interlace.core.hardware import Fleet
from interlace.core.messages import (
    EpochEnded,
    ModelWithdrawn,
    ProfileMeasured,
    ScaleFleet,
    SolvePlan,
)
from interlace.policy.catalog import resolve
from interlace.policy.scaling import GrowAndShrink
from interlace.sim.scenario import Reserve
from tests.builders import World, line_profile, machine

PROFILES = {name: line_profile(name, 40.0, 20.0, speedup=0.5) for name in "ab"}
PACE = GrowAndShrink(cool_down_ms=3_000.0, resolve_ms=2_000.0, patience_ms=8_000.0)


def _asked_ms(world: World) -> list[float]:
    return [now for now, _, cs in world.log if any(isinstance(c, SolvePlan) for c in cs)]


def _elastic() -> World:
    (gpu,) = machine().gpus
    reserve = Reserve((replace(gpu, id="g1"), replace(gpu, id="g2")), 0.0)
    row = replace(resolve("interlace"), scaler=PACE)
    world = World(PROFILES, Fleet((gpu,)), row, reserve=reserve)
    world.deploy({"a": 600.0, "b": 600.0}, rows_per_s=10.0)
    return world


def _send(world: World, rows_per_s: float, seconds: float) -> None:
    gap_ms = 1000.0 / rows_per_s
    for _ in range(int(rows_per_s * seconds)):
        for model in "ab":
            world.send(model, 600.0)
        world.run(gap_ms)


def test_more_is_asked_for_soon_and_less_with_patience() -> None:
    world = _elastic()
    _send(world, 10.0, 10.0)
    assert len(_asked_ms(world)) == 1, "rates as they were planned ask for nothing"
    _send(world, 60.0, 10.0)
    first_ms = _asked_ms(world)[1]
    assert 10_000.0 + PACE.resolve_ms <= first_ms <= 10_000.0 + PACE.resolve_ms + 2_000.0
    assert any(isinstance(c, ScaleFleet) for _, _, cs in world.log for c in cs)
    grown_ms = world.clock.now_ms()
    _send(world, 10.0, 20.0)
    fewer = [now for now in _asked_ms(world) if now > grown_ms]
    assert fewer and fewer[0] >= grown_ms + PACE.patience_ms


def test_plans_that_rates_ask_for_keep_their_distance() -> None:
    world = _elastic()
    for rows_per_s in (15.0, 25.0, 40.0, 60.0, 80.0):
        _send(world, rows_per_s, 4.0)
    # Not counted: an accelerator that came is planned with at once.
    by_rates_ms = [
        now
        for now, event, commands in world.log
        if isinstance(event, EpochEnded) and any(isinstance(c, SolvePlan) for c in commands)
    ]
    assert len(by_rates_ms) >= 2
    assert min(b - a for a, b in pairwise(by_rates_ms)) >= PACE.cool_down_ms


@pytest.mark.parametrize("elastic", [True, False])
def test_a_model_that_left_is_planned_without(elastic: bool) -> None:
    world = _elastic() if elastic else World(PROFILES)
    if not elastic:
        world.deploy({"a": 600.0, "b": 600.0}, rows_per_s=10.0)
    world.run(5_000.0)
    world.runtime.deliver(ModelWithdrawn("b"))
    world.run(15_000.0)
    solves = [c for _, _, commands in world.log for c in commands if isinstance(c, SolvePlan)]
    assert [sorted(one.model for one in solve.demand) for solve in solves] == [["a", "b"], ["a"]]


def test_a_model_that_was_measured_again_is_planned_anew_and_predicted_so() -> None:
    world = World(PROFILES)
    world.deploy({"a": 600.0, "b": 600.0}, rows_per_s=10.0)
    world.run(1_000.0)
    slower = line_profile("a", 80.0, 40.0, speedup=0.5)
    deployed = world.engine._state.models["a"]
    before_ms = deployed.latency_ms(4, 100)
    world.runtime.deliver(ProfileMeasured("a", slower))
    assert deployed.latency_ms(4, 100) == pytest.approx(2.0 * before_ms)
    world.run(1_000.0)
    solves = [c for _, _, commands in world.log for c in commands if isinstance(c, SolvePlan)]
    assert [solve.profiles["a"] for solve in solves] == [PROFILES["a"], slower]
    assert solves[-1].profiles["b"] == PROFILES["b"]
    count = len(world.log)
    world.runtime.deliver(ProfileMeasured("unknown", slower))
    assert not any(commands for _, _, commands in world.log[count:])
