"""DeepPlan's passes on lists small enough to follow by hand."""

from __future__ import annotations

import pytest
from hypothesis import given

from interlace.core.loading import HostLinks, WeightPath
from interlace.core.profile import LayerProfile
from interlace.policy.cold_starts import deepplan
from tests.policy.cold_starts.layers import layer_lists


def layer(
    copy_ms: float, run_ms: float, host_ms: float, kind: str = "Linear", nbytes: int = 100
) -> LayerProfile:
    return LayerProfile("one", nbytes, copy_ms, run_ms, host_ms, kind)


@pytest.mark.parametrize(
    ("kind", "host_ms", "on_host"),
    [
        ("Linear", 2.9, True),
        ("Linear", 3.0, False),
        ("Embedding", 9.0, True),
        ("BatchNorm2d", 9.0, True),
        ("batch_norm", 9.0, True),
        ("LayerNorm", 9.0, False),
    ],
)
def test_the_initial_choice_judges_each_layer_alone(
    kind: str, host_ms: float, on_host: bool
) -> None:
    assert deepplan.initial_choice([layer(2.0, 1.0, host_ms, kind)]) == [on_host]


def test_figure_7_a_stalled_layer_goes_to_the_host_if_that_takes_less_than_its_stall() -> None:
    assert deepplan.without_stalls([layer(2.0, 1.0, 1.5)]) == [True]
    assert deepplan.without_stalls([layer(2.0, 1.0, 3.5)]) == [False]


def test_figure_8_an_earlier_layer_makes_room_for_the_copy_of_a_stalled_one() -> None:
    first, second = layer(1.0, 1.0, 1.5), layer(4.0, 1.0, 99.0)
    assert deepplan.without_stalls([first, second]) == [True, False]


def test_a_stall_that_is_hidden_already_moves_nothing() -> None:
    """Where the initial choice would: the third layer's copy is hidden behind the second's run."""
    hidden = [layer(1.0, 1.0, 9.0), layer(1.0, 9.0, 99.0), layer(2.0, 1.0, 2.5)]
    assert deepplan.initial_choice(hidden) == [False, False, True]
    assert deepplan.without_stalls(hidden) == [False, False, False]


def test_the_search_ends_at_the_first_layer_that_costs_more_than_the_stall() -> None:
    """The second layer would do, but is sorted behind the first, which would not."""
    dear = layer(0.1, 1.0, 1.3)  # adds 0.3, and saves one and a half times its copy at most
    stalled = layer(2.0, 1.0, 1.5)
    assert deepplan.without_stalls([dear, stalled]) == [False, False]
    # Algorithm 1 as printed looks on: it compares with the stall alone (line 9); the bound is the
    # released planner's.
    assert deepplan.without_stalls([dear, stalled], bounded=False) == [True, True]


def test_changes_for_a_stall_that_stays_are_not_taken_back() -> None:
    layers = [layer(1.0, 1.0, 1.5), layer(9.0, 1.0, 99.0)]
    assert deepplan.without_stalls(layers) == [True, False]


def test_what_is_loaded_is_cut_into_parts_of_equal_bytes() -> None:
    layers = [layer(1.0, 1.0, 9.0, nbytes=nbytes) for nbytes in (30, 30, 30, 30)]
    assert deepplan.partitions(layers, [False] * 4, 2) == [0, 0, 1, 1]
    assert deepplan.partitions(layers, [True, False, False, False], 2) == [0, 0, 1, 1]
    # What would make a part too large begins the next one, if it is larger than a part the last.
    uneven = [layer(1.0, 1.0, 9.0, nbytes=nbytes) for nbytes in (10, 80, 10, 20)]
    assert deepplan.partitions(uneven, [False] * 4, 2) == [0, 1, 1, 1]
    assert deepplan.partitions(uneven, [False] * 4, 3) == [0, 2, 2, 2]


@given(layer_lists(30))
def test_parallel_transmission_reads_nothing_from_the_host(layers: list[LayerProfile]) -> None:
    links = HostLinks(1, 1e6)
    plan = deepplan.parallel_transmission(layers, links)
    assert not any(step.via is WeightPath.HOST for step in plan.steps)
    numbers = [step.link for step in plan.steps if step.via is not WeightPath.KEEP]
    assert numbers == sorted(numbers)
    alone = deepplan.direct_host_access(layers, links)
    together = deepplan.both(layers, links)
    assert [step.via is WeightPath.HOST for step in alone.steps] == [
        step.via is WeightPath.HOST for step in together.steps
    ]
