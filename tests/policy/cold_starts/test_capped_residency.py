"""A bound on what one model holds: what gains most is brought, and never more than is allowed."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.loading import OWN_LINK, HostLinks
from interlace.core.profile import LayerProfile
from interlace.perf.cold_start import capped_residency, reads_too_long
from interlace.policy.cold_starts.catalog import COLD_POLICIES
from interlace.policy.cold_starts.frontier import moved_bytes
from tests.policy.cold_starts.layers import layer_lists

CORES = HostLinks(takes_cores=True)


def saved_ms(layers: list[LayerProfile]) -> float:
    return sum(one.run_host_ms - one.run_ms for one in layers)


@given(layer_lists(12), st.integers(0, 20_000), st.sampled_from(sorted(COLD_POLICIES)))
def test_no_row_brings_more_than_is_allowed(
    layers: list[LayerProfile], most_bytes: int, name: str
) -> None:
    allowed = capped_residency(layers, CORES, most_bytes)
    plan = COLD_POLICIES[name].cold_start(allowed, CORES)
    assert moved_bytes(allowed, plan) <= sum(one.weights_bytes for one in allowed) <= most_bytes
    for before, after in zip(layers, allowed, strict=True):
        assert after in (before, replace(before, weights_bytes=0, copy_ms=0.0, run_ms=after.run_ms))
        if before.weights_bytes and not after.weights_bytes:
            assert after.run_ms == before.run_host_ms


@given(layer_lists(8))
def test_a_bound_that_does_not_bind_changes_nothing(layers: list[LayerProfile]) -> None:
    whole = sum(one.weights_bytes for one in layers)
    for links in (OWN_LINK, CORES):
        assert capped_residency(layers, links, whole) == tuple(layers)


@given(st.lists(st.integers(-4, 20), min_size=1, max_size=7), st.integers(0, 7))
def test_of_layers_alike_those_that_gain_most_are_brought(slower: list[int], count: int) -> None:
    layers = [LayerProfile(f"{n}", 100, 1.0, 5.0, 5.0 + one / 4) for n, one in enumerate(slower)]
    brought = [one for one in capped_residency(layers, CORES, 100 * count) if one.weights_bytes]
    fitting = combinations(layers, min(count, len(layers)))
    assert saved_ms(brought) == max(saved_ms(list(some)) for some in fitting)


@given(layer_lists(12), st.integers(0, 20_000))
def test_a_gpu_is_never_left_without_what_it_cannot_read(
    layers: list[LayerProfile], most_bytes: int
) -> None:
    needed = [one for one in layers if one.weights_bytes and reads_too_long(one)]
    if sum(one.weights_bytes for one in needed) > most_bytes:
        with pytest.raises(ValueError, match="MB of its weights must be in memory for it to run"):
            capped_residency(layers, OWN_LINK, most_bytes)
    else:
        allowed = capped_residency(layers, OWN_LINK, most_bytes)
        assert all(one in allowed for one in needed)
