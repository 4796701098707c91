"""Laws of what stays in memory: the budget, the bound, and the best of few models."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.loading import HostLinks
from interlace.core.profile import LayerProfile
from interlace.policy.cold_curve import ColdCurve, ColdPoint
from interlace.policy.cold_starts.frontier import lasting
from interlace.policy.residency import residency
from tests.policy.cold_starts.layers import layer_lists

GB = 10**9


@st.composite
def curve(draw: st.DrawFn) -> tuple[ColdPoint, ...]:
    steps = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=0, max_size=4))
    points = [ColdPoint(0, sum(nbytes for nbytes, _ in steps), 0.0, 100.0)]
    for nbytes, saved in steps:
        last = points[-1]
        points.append(ColdPoint(last[0] + nbytes, last[1] - nbytes, 0.0, last.end_ms - saved))
    return tuple(points)


cases = st.lists(st.tuples(curve(), st.integers(0, 5)), min_size=1, max_size=4)


@given(cases, st.integers(0, 60))
def test_memory_is_kept_and_no_choice_beats_the_bound(
    models: list[tuple[tuple[ColdPoint, ...], int]], memory: int
) -> None:
    curves = {f"m{n}": one for n, (one, _) in enumerate(models)}
    rates = {f"m{n}": float(rate) for n, (_, rate) in enumerate(models)}
    found = residency(curves, rates, memory)
    assert found.kept_bytes <= memory
    saved = []
    for choice in product(*curves.values()):
        if sum(point.kept_bytes for point in choice) <= memory:
            pairs = zip(curves, choice, strict=True)
            saved.append(sum(rates[m] * (curves[m][0].end_ms - p.end_ms) for m, p in pairs))
    assert max(saved) <= found.bound_ms_per_s + 1e-9
    assert found.saved_ms_per_s <= max(saved) + 1e-9
    # One edge of a hull is all that cannot be divided.
    edge = max((rates[m] * (one[0].end_ms - one[-1].end_ms) for m, one in curves.items()))
    assert found.saved_ms_per_s >= max(saved) - edge - 1e-9


@given(cases, st.integers(0, 60), st.integers(0, 60))
def test_more_memory_never_lowers_the_bound(
    models: list[tuple[tuple[ColdPoint, ...], int]], memory: int, more: int
) -> None:
    curves = {f"m{n}": one for n, (one, _) in enumerate(models)}
    rates = {f"m{n}": float(rate) for n, (_, rate) in enumerate(models)}
    bounds = [residency(curves, rates, one).bound_ms_per_s for one in (memory, memory + more)]
    assert bounds[0] <= bounds[1] + 1e-9


@given(layer_lists(12))
def test_a_curve_falls_to_the_warm_time(layers: list[LayerProfile]) -> None:
    points = ColdCurve(lasting, layers, HostLinks()).points
    assert points[0].kept_bytes == 0
    for before, after in pairwise(points):
        assert after.kept_bytes > before.kept_bytes
        assert after.price_ms < before.price_ms
    warm_ms = sum(one.run_ms for one in layers)
    assert points[-1].end_ms <= warm_ms + 1e-9


def _bert() -> list[LayerProfile]:
    """A table that is read by rows, and 96 layers that the link is slower for than execution."""
    table = LayerProfile("table", 94_000_000, 8.0, 0.05, 0.1, "Embedding")
    return [table, *(LayerProfile(f"l{n}", 3_600_000, 0.32, 0.1, 4.0, "Linear") for n in range(96))]


def test_flat_popularity_keeps_equal_parts_and_steep_keeps_whole_models() -> None:
    curves = {f"m{n}": ColdCurve(lasting, _bert(), HostLinks()).points for n in range(8)}
    flat = residency(curves, dict.fromkeys(curves, 1.0), GB)
    parts = [point.kept_bytes for point in flat.kept.values()]
    assert max(parts) - min(parts) <= 3_600_000 * 5
    assert sum(parts) == pytest.approx(GB, rel=0.1)
    steep = residency(curves, {f"m{n}": 4.0**-n for n in range(8)}, GB)
    ends = [steep.kept[f"m{n}"].end_ms for n in range(8)]
    warm_ms = sum(layer.run_ms for layer in _bert())
    assert ends == sorted(ends)
    assert ends[0] == pytest.approx(warm_ms, rel=0.02) and ends[-1] == curves["m0"][0].end_ms
    for one in (flat, steep):
        assert one.saved_ms_per_s >= 0.95 * one.bound_ms_per_s
