"""Duty cycles: the exact search keeps its promises and misses nothing a dense scan finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.perf.duty import CycleTurn, fit, saturated_rows_per_s


def _turn(model: str, rate: float, slo: float, fixed: float, row: float, most: int) -> CycleTurn:
    return CycleTurn(model, rate, slo, (0.0, *(fixed + row * b for b in range(1, most + 1))))


turns = st.builds(
    _turn,
    st.just("m"),
    st.floats(0.1, 300.0),
    st.floats(5.0, 300.0),
    st.floats(0.1, 20.0),
    st.floats(0.01, 5.0),
    st.integers(1, 32),
)


@given(st.lists(turns, min_size=1, max_size=4))
def test_a_cycle_serves_every_rate_within_every_slo(loads: list[CycleTurn]) -> None:
    cycle = fit(loads)
    if cycle is None:
        return
    assert cycle.busy_ms <= cycle.duty_ms * (1 + 1e-6)
    for load, batch in zip(loads, cycle.batches, strict=True):
        assert batch * 1000.0 / cycle.duty_ms >= load.rows_per_s * (1 - 1e-6)
        assert cycle.duty_ms + load.latency_ms[batch] <= load.slo_ms * (1 + 1e-6)


@settings(max_examples=60)
@given(st.lists(turns, min_size=1, max_size=3))
def test_no_scan_of_cycle_lengths_finds_what_the_search_does_not(loads: list[CycleTurn]) -> None:
    if fit(loads) is not None:
        return
    longest = min(load.slo_ms for load in loads)
    for step in range(1, 2_000):
        duty_ms = longest * step / 2_000
        batches = [max(1, -int(-load.rows_per_s * duty_ms // 1000)) for load in loads]
        if any(b > load.max_batch for b, load in zip(batches, loads, strict=True)):
            continue
        runs = [load.latency_ms[b] for b, load in zip(batches, loads, strict=True)]
        inside = all(duty_ms + r <= load.slo_ms for r, load in zip(runs, loads, strict=True))
        assert not (inside and sum(runs) <= duty_ms)


@given(turns)
def test_one_model_alone_is_served_up_to_its_saturated_rate(load: CycleTurn) -> None:
    most_rows_per_s = saturated_rows_per_s(load)
    if most_rows_per_s == 0.0:
        return
    almost = CycleTurn(load.model, most_rows_per_s * 0.999, load.slo_ms, load.latency_ms)
    assert fit([almost]) is not None
