"""Shortest cycles, room beside others, tables, and partitions that slow each other."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.plan import Demand
from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.duty import (
    CycleTurn,
    fit,
    room_rows_per_s,
    saturated_rows_per_s,
    settled,
    shortest,
)
from interlace.perf.interference import ConstantFactor, CoRunner
from interlace.perf.latency import surface
from interlace.perf.tables import Tables


def _turn(rate: float, slo: float, fixed: float, row: float, most: int) -> CycleTurn:
    return CycleTurn("m", rate, slo, (0.0, *(fixed + row * b for b in range(1, most + 1))))


turns = st.builds(
    _turn,
    st.floats(0.1, 300.0),
    st.floats(5.0, 300.0),
    st.floats(0.1, 20.0),
    st.floats(0.01, 5.0),
    st.integers(1, 16),
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
def test_no_cycle_is_shorter_than_the_shortest(loads: list[CycleTurn]) -> None:
    found = shortest(loads)
    assert (found is None) == (fit(loads) is None)
    last_ms = found.duty_ms if found else min(one.slo_ms for one in loads)
    for step in range(1, 500):
        duty_ms = last_ms * step / 500 * (1 - 1e-6)
        batches = [one.batch(duty_ms) for one in loads]
        if any(b > one.max_batch for b, one in zip(batches, loads, strict=True)):
            continue
        runs_ms = [one.latency_ms[b] for b, one in zip(batches, loads, strict=True)]
        late = any(duty_ms + ms > one.slo_ms for ms, one in zip(runs_ms, loads, strict=True))
        assert late or sum(runs_ms) > duty_ms


@settings(max_examples=60)
@given(st.lists(turns, max_size=2), turns)
def test_the_room_beside_others_fits_and_more_does_not(
    loads: list[CycleTurn], newcomer: CycleTurn
) -> None:
    if loads and shortest(loads) is None:
        return
    room = room_rows_per_s(loads, newcomer)
    if room > 0:
        assert shortest([*loads, replace(newcomer, rows_per_s=room)]) is not None
    more = replace(newcomer, rows_per_s=max(room * 1.0001, 1e-3))
    assert shortest([*loads, more]) is None


@given(turns)
def test_the_room_of_an_empty_partition_is_its_saturated_rate(alone: CycleTurn) -> None:
    assert room_rows_per_s([], alone) == pytest.approx(saturated_rows_per_s(alone))


def test_no_turns_and_no_batches_have_no_cycle() -> None:
    assert shortest([]) is None and fit([]) is None
    assert shortest([CycleTurn("m", 1.0, 10.0, (0.0,))]) is None


def test_a_rate_of_zero_still_has_its_turn() -> None:
    cycle = fit([_turn(0.0, 100.0, 1.0, 1.0, 8)])
    assert cycle is not None and cycle.batches == (1,) and cycle.duty_ms == pytest.approx(98.0)


PROFILE = Profile(
    "m",
    "",
    "k",
    1,
    1,
    {
        (b, share): LatencyPoint(ms, ms, ms, 1)
        for share, slow in ((40, 2.0), (100, 1.0))
        for b, ms in ((1, 3.0 * slow), (4, 6.0 * slow), (16, 24.0 * slow))
    },
)


@given(st.floats(1.0, 100.0), st.integers(1, 20), st.sampled_from([40, 70, 100]))
def test_saturated_rates_are_those_of_the_whole_table(slo: float, most: int, share: int) -> None:
    tables, one = Tables({"m": PROFILE}), Demand("m", 1.0, slo, most)
    alone = tables.turn(one, 1.0, share)
    assert tables.saturated_rows_per_s(one, share) == pytest.approx(saturated_rows_per_s(alone))
    latency = surface(PROFILE)
    for batch in range(1, alone.max_batch + 1):
        assert alone.latency_ms[batch] == pytest.approx(latency.latency_ms(batch, share))
    assert alone.max_batch == min(most, 16)  # beyond the largest measured nothing is known


def test_a_share_that_was_not_measured_serves_nothing() -> None:
    tables, one = Tables({"m": PROFILE}), Demand("m", 1.0, 100.0)
    assert tables.saturated_rows_per_s(one, 20) == 0.0
    assert shortest([tables.turn(one, 1.0, 20)]) is None
    assert tables.required_pct(one, 1.0, (20, 40, 100)) == 40


class ByRows:
    """Every row of a neighbour's batch costs two per cent."""

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        return 1.0 + 0.02 * sum(n.batch for n in neighbours)


@settings(max_examples=50, deadline=None)
@given(turns, turns)
def test_settled_cycles_hold_with_the_batches_that_they_have(
    one: CycleTurn, other: CycleTurn
) -> None:
    found = settled([(40, [one]), (60, [other])], ByRows())
    if found is None:
        return
    for (own, cycle), beside in zip(
        ((one, found[0]), (other, found[1])), reversed(found), strict=True
    ):
        run_ms = own.latency_ms[cycle.batches[0]] * (1.0 + 0.02 * beside.batches[0])
        assert run_ms <= cycle.duty_ms * (1 + 1e-6)
        assert run_ms + cycle.duty_ms <= own.slo_ms * (1 + 1e-6)
        assert cycle.batches[0] * 1000.0 / cycle.duty_ms >= own.rows_per_s * (1 - 1e-6)


@settings(max_examples=40, deadline=None)
@given(turns, turns)
def test_nobody_is_slowed_by_a_factor_of_one(one: CycleTurn, other: CycleTurn) -> None:
    found = settled([(40, [one]), (60, [other])], ConstantFactor(1.0))
    alone = [fit([one]), fit([other])]
    assert found == (None if None in alone else alone)
