"""The layout of a sweep: batches, samples, quantiles."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from interlace.profiling.sweep import SweepSettings, batch_sizes, enough, point


@given(st.integers(1, 500), st.integers(2, 8))
def test_batches_ascend_from_one_to_the_largest(max_batch: int, factor: int) -> None:
    sizes = batch_sizes(max_batch, factor)
    assert sizes[0] == 1
    assert sizes[-1] == max_batch
    assert list(sizes) == sorted(set(sizes))
    assert all(b <= a * factor for a, b in pairwise(sizes))


def test_a_point_ends_by_count_or_by_time_but_not_before_the_least() -> None:
    settings = SweepSettings(samples=10, samples_min=3, budget_s=1.0)
    assert not enough([1.0] * 2, 99.0, settings)
    assert enough([1.0] * 3, 1.0, settings)
    assert not enough([1.0] * 9, 0.9, settings)
    assert enough([1.0] * 10, 0.0, settings)


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=300))
def test_quantiles_are_ordered_and_were_seen(latencies_ms: list[float]) -> None:
    found = point(latencies_ms)
    assert found.median_ms <= found.p95_ms <= found.p99_ms <= max(latencies_ms)
    assert {found.median_ms, found.p95_ms, found.p99_ms} <= set(latencies_ms)
    assert found.samples == len(latencies_ms)


def test_the_quantiles_of_a_hundred() -> None:
    found = point([float(i) for i in range(1, 101)])
    assert (found.median_ms, found.p95_ms, found.p99_ms) == (50.0, 95.0, 99.0)
