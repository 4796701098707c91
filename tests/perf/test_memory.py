"""What models need on an accelerator, and whether it has it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.hardware import Gpu
from interlace.core.profile import LayerProfile, Profile
from interlace.perf.memory import holds, needed_bytes

GPU = Gpu("g", "k", 100, 1_000, (50, 100))
WALLED = replace(GPU, layouts=((50, 50), (100,)), walls=((50, 500), (100, 1_000)))
PROFILES = {
    name: Profile(name, "d", "k", weights, activations, {})
    for name, weights, activations in (("a", 300, 100), ("b", 200, 50))
}

instances = st.lists(st.sampled_from(sorted(PROFILES)), max_size=8)


def test_weights_are_held_once_and_activations_by_each_instance() -> None:
    assert needed_bytes([], PROFILES, GPU) == 0
    assert needed_bytes(["a"], PROFILES, GPU) == 400
    assert needed_bytes(["a", "a", "a"], PROFILES, GPU) == 600
    assert needed_bytes(["a", "b", "a"], PROFILES, GPU) == 300 + 200 + 100 + 50 + 100


@given(instances, st.sampled_from(sorted(PROFILES)))
def test_one_more_instance_needs_at_most_what_it_needs_alone(there: list[str], one: str) -> None:
    more = needed_bytes([*there, one], PROFILES, GPU) - needed_bytes(there, PROFILES, GPU)
    assert PROFILES[one].activation_bytes <= more <= needed_bytes([one], PROFILES, GPU)


def test_partitions_share_memory_where_there_are_no_walls() -> None:
    assert holds(GPU, [(50, ["a", "b"]), (50, ["a", "b"])], PROFILES), "800 of 1,000 bytes"
    small = replace(GPU, memory_bytes=799)
    assert not holds(small, [(50, ["a", "b"]), (50, ["a", "b"])], PROFILES)
    assert holds(small, [], PROFILES)


def test_behind_walls_each_partition_has_weights_and_memory_of_its_own() -> None:
    assert holds(WALLED, [(50, ["a"]), (50, ["b"])], PROFILES)
    assert not holds(WALLED, [(50, ["a", "b"])], PROFILES), "650 bytes behind a wall of 500"
    assert holds(WALLED, [(100, ["a", "b"])], PROFILES)


def test_a_model_without_a_profile_has_no_size() -> None:
    with pytest.raises(KeyError):
        needed_bytes(["c"], PROFILES, GPU)


def test_weights_that_come_and_go_have_a_budget_of_their_own() -> None:
    layer = LayerProfile("0", 300, 1.0, 1.0, 2.0)
    known = {**PROFILES, "a": replace(PROFILES["a"], layers=(layer,))}
    budget = replace(GPU, weights_bytes=700)
    assert needed_bytes(["a", "a", "b"], known, budget) == 100 + 100 + 200 + 50
    assert holds(budget, [(50, ["a"]), (50, ["a"])], known), "200 of 300 bytes"
    assert not holds(budget, [(50, ["a", "b"])], known), "350 of 300 bytes"
    assert needed_bytes(["a", "a", "b"], known, GPU) == 300 + 100 + 100 + 200 + 50
