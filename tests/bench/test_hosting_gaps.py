"""Gaps and idle shares of a change of plan, by mechanism: make before break, or break first."""

from dataclasses import replace

import pytest

from bench.hosting_gaps import Gaps
from interlace.core.hardware import Fleet
from interlace.core.messages import ModelsDeployed, PlanSolved
from interlace.core.plan import Demand, Partition, Plan, Slot
from interlace.core.profile import Profiles
from interlace.core.request import Outcome
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.physics import MechanismCosts
from interlace.engine.engine import Engine
from interlace.policy.catalog import resolve
from tests.builders import OVERLAP, World, line_profile, machine

#: gpulet section 5.1: a process with its MPS share takes 10 to 15 s, its models included.
MPS = MechanismCosts(carve_ms=12_000.0)
#: Green contexts are made in less than a millisecond.
GREEN = MechanismCosts(carve_ms=0.5)
PROFILES = {name: line_profile(name, 2.0, 0.5) for name in "ab"}


class _Turning:
    """A planner that turns its answer round each time: a on one half and b on the other."""

    def __init__(self, *plans: Plan) -> None:
        self._plans, self._asked = plans, 0

    def __call__(
        self, demand: list[Demand], fleet: Fleet, profiles: Profiles, current: Plan
    ) -> Plan:
        self._asked += 1
        return self._plans[(self._asked - 1) % len(self._plans)]


def _plan(*parts: tuple[str, int, str]) -> Plan:
    return Plan(
        tuple(
            Partition(f"{gpu}:{index}", gpu, share, tuple(Slot(m, 4, 10.0) for m in models))
            for index, (gpu, share, models) in enumerate(parts)
        )
    )


def _world(fleet: Fleet, costs: MechanismCosts, *plans: Plan) -> tuple[World, Gaps]:
    row = replace(resolve("interlace"), planner=_Turning(*plans))
    world = World(PROFILES, fleet, row)
    for gpu in fleet.gpus:
        device = SimulatedDevice(gpu, world.clock, PROFILES, costs)
        device.on_event(world.runtime.deliver)
        world.runtime._devices[gpu.id] = device
    gaps = Gaps(Engine(fleet, row))
    world.runtime._observers.append(gaps)
    world.deploy({"a": 60.0, "b": 60.0})
    world.run(20_000.0)
    assert not gaps.gaps
    return world, gaps


def _change_under_traffic(world: World, for_ms: float) -> None:
    """A new plan, with two requests of each model every 10 ms."""
    world.runtime.deliver(ModelsDeployed(()))
    until_ms = world.clock.now_ms() + for_ms
    while world.clock.now_ms() < until_ms:
        for model in "aabb":
            world.send(model, 60.0)
        world.run(10.0)
    world.run(1_000.0)
    answered = {reply.request.id for _, reply in world.replies}
    assert len(answered) == len(world.replies) and world.runtime.unanswered == 0


HALVES = _plan(("g0", 50, "a"), ("g0", 50, "b"))
WHOLE = _plan(("g0", 100, "ab"))


@pytest.mark.parametrize("costs", [MPS, GREEN], ids=["MPS", "green"])
def test_overlapped_change_has_no_gap_idles_nothing_and_delays_nobody(
    costs: MechanismCosts,
) -> None:
    world, gaps = _world(machine(), costs, HALVES, WHOLE)
    _change_under_traffic(world, 15_000.0)
    assert gaps.gaps == [] and gaps.open_gaps == []
    change = gaps.changes[-1]
    assert change.idle_ms == 0.0
    assert costs.carve_ms <= change.until_ms - change.from_ms <= costs.carve_ms + 60.0
    assert {reply.outcome for _, reply in world.replies} == {Outcome.OK}


@pytest.mark.parametrize("costs", [MPS, GREEN], ids=["MPS", "green"])
def test_without_overlap_the_gap_is_the_time_to_stand(costs: MechanismCosts) -> None:
    world, gaps = _world(machine(traits=frozenset()), costs, HALVES, WHOLE)
    _change_under_traffic(world, 15_000.0)
    assert {gap.model for gap in gaps.gaps} == {"a", "b"}
    for gap in gaps.gaps:
        # The last batch, the release, the carving and the loading of one model or of both.
        assert 0 <= gap.until_ms - gap.from_ms - costs.carve_ms <= 4.0 + 1.0 + 2 * 5.0
    assert gaps.changes[-1].idle_ms >= costs.carve_ms


def test_without_overlap_two_accelerators_take_turns_and_no_model_is_ever_missing() -> None:
    gpu = machine(traits=frozenset()).gpus[0]
    fleet = Fleet((gpu, replace(gpu, id="g1")))
    halves = _plan(*[(g, 50, m) for g in ("g0", "g1") for m in "ab"])
    world, gaps = _world(fleet, MPS, halves, _plan(("g0", 100, "ab"), ("g1", 100, "ab")))
    _change_under_traffic(world, 30_000.0)
    assert gaps.gaps == []
    assert gaps.changes[-1].idle_ms == pytest.approx(2 * MPS.carve_ms, rel=0.01)


def test_where_memory_holds_one_plan_and_a_half_the_cheapest_goes_first() -> None:
    """a and b stand alone, and are to be together: 4 instances and 1 more do not fit beside."""
    weights, one = 1_000, 400
    heavy = {m: replace(p, activation_bytes=one) for m, p in PROFILES.items()}
    before = _plan(("g0", 50, "ab"), ("g0", 50, "a"))
    after = _plan(("g0", 100, "ab"))
    memory = 2 * weights + 4 * one  # both plans need five instances
    row = replace(resolve("interlace"), planner=_Turning(before, after))
    world = World(heavy, machine(memory, OVERLAP), row)
    gaps = Gaps(Engine(world.fleet, row))
    world.runtime._observers.append(gaps)
    world.deploy({"a": 60.0, "b": 60.0})
    world.run(1_000.0)
    _change_under_traffic(world, 500.0)
    assert gaps.gaps == [], "the second host of a goes; the only one of b stays until the switch"
    assert any(isinstance(event, PlanSolved) for _, event, _ in world.log)
    assert {reply.outcome for _, reply in world.replies} <= {Outcome.OK, Outcome.REFUSED}
    assert 0 < gaps.changes[-1].idle_ms < 500.0
