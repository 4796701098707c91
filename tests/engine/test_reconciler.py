"""What is asked of a device on the way to a plan."""

from interlace.core.hardware import Trait
from interlace.core.messages import Load
from tests.builders import OVERLAP, World, line_profile, machine
from tests.perf.padding import padding_waste
from tests.policy.test_outlook import guest_world


def _loads(traits: frozenset[Trait]) -> list[Load]:
    world = World({"a": line_profile("a")}, machine(traits=traits))
    world.deploy({"a": 50.0})
    world.run(1_000)
    return [one for _, _, commands in world.log for one in commands if isinstance(one, Load)]


def test_where_models_run_at_prepared_sizes_loads_say_which() -> None:
    loads = _loads(OVERLAP | {Trait.GRAPHS})
    assert loads
    for load in loads:
        assert load.batches == tuple(sorted(load.batches))
        assert load.batches[-1] == 32  # what the demand allows
        line = {rows: 2.0 + rows for rows in range(1, 33)}
        assert padding_waste(load.batches, line) < 1 / 3


def test_elsewhere_any_size_runs_and_none_is_named() -> None:
    assert {load.batches for load in _loads(OVERLAP)} == {()}


def test_a_model_that_is_only_a_guest_here_is_ready() -> None:
    world = guest_world()
    assert {(one.model, one.status) for one in world.statuses} == {("a", "ready"), ("b", "ready")}
    assert world.settled[-1]
