"""Runs side by side, on a device whose neighbours slow each other as told."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.hardware import Gpu
from interlace.core.messages import CreatePartition, Failure, Load, Run, Work, WorkFinished
from interlace.core.profile import LatencyPoint, Profile
from interlace.perf.interference import CoRunner
from interlace.profiling.corun import (
    CoRun,
    CoRunModel,
    Interval,
    batch_for,
    common,
    corun_share_pct,
    inside,
    merged,
    observations,
    overlap,
    pairs,
    together,
    total_ms,
    triples,
)
from interlace.profiling.rig import MeasureError, Rig, at_once, keep_busy, measure_coruns
from interlace.profiling.samples import SampleInputs
from interlace.runtime.clock import SimClock
from tests.profiling.fakes import (
    GPU,
    FakeArena,
    FakeDevice,
    in_virtual_time,
    latency_ms,
    make_model,
)


@dataclass
class Neighbourly(FakeDevice):
    """A batch that starts while others run takes half as long again for each of them."""

    running: set[str] = field(default_factory=set)

    def do(self, work: Work, done: Callable[[WorkFinished], None]) -> None:
        if not isinstance(work, Run):
            super().do(work, done)
            return
        beside = len(self.running)
        self.running.add(work.partition)
        self.slower = lambda _: 0.5 * beside * latency_ms(work.batch.rows, 50)

        def ended(finished: WorkFinished) -> None:
            self.running.discard(work.partition)
            done(finished)

        super().do(work, ended)


def measure(device: FakeDevice, names: str, count: int, share_pct: int = 50) -> list[CoRun]:
    rig = Rig(device, device.clock, FakeArena())  # type: ignore[arg-type]
    sides = [CoRunModel(make_model(name), 2) for name in names]

    async def collect() -> list[CoRun]:
        return [
            one async for group in measure_coruns(rig, sides, share_pct, count) for one in group
        ]

    return in_virtual_time(device.clock, collect())


def test_every_pair_is_seen_from_both_sides_and_also_beside_itself() -> None:
    found = measure(Neighbourly(SimClock()), "ab", 2)
    names = sorted((one.runner.model, one.neighbours[0].model) for one in found)
    assert names == [("a", "a"), ("a", "a"), ("a", "b"), ("b", "a"), ("b", "b"), ("b", "b")]
    for one in found:
        assert one.runner == CoRunner(one.runner.model, 2, 50)
        assert one.alone_ms == pytest.approx(latency_ms(2, 50))
        assert one.slowdown == pytest.approx(1.5)
        assert one.overlap > 0.9
        assert one.full_slowdown == pytest.approx(1.5, abs=0.06)


def test_three_side_by_side() -> None:
    device = Neighbourly(SimClock(), Gpu("g", "k", 3, 1 << 30, (33, 100)))
    found = measure(device, "abc", 3, 33)
    assert len(found) == 9
    assert all(len(one.neighbours) == 2 for one in found)
    assert all(one.overlap > 0.8 and one.slowdown > 1.4 for one in found)


def test_nothing_is_left_behind_and_each_model_is_loaded_once_a_partition() -> None:
    device = Neighbourly(SimClock())
    measure(device, "abc", 2)
    assert not device.partitions
    assert sum(isinstance(work, Load) for work in device.log) == 6


@pytest.mark.parametrize("failing", [Load, CreatePartition])
def test_a_failure_is_an_error_and_partitions_are_released(failing: type) -> None:
    """Also where half of them are carved."""
    device = Neighbourly(SimClock())
    device.fail = lambda work: (
        Failure("no room") if isinstance(work, failing) and device.partitions else None
    )
    with pytest.raises(MeasureError, match="no room"):
        measure(device, "ab", 2)
    assert not device.partitions


def test_a_failure_among_several_is_raised_as_itself() -> None:
    device = FakeDevice(SimClock())
    device.fail = lambda work: Failure("broken") if isinstance(work, Run) else None
    rig = Rig(device, device.clock, FakeArena())  # type: ignore[arg-type]
    inputs = SampleInputs(make_model(), rig.arena)
    with pytest.raises(MeasureError, match="broken"):
        works = [keep_busy(rig, "p", inputs, 1, 1.0), keep_busy(rig, "q", inputs, 1, 1.0)]
        in_virtual_time(device.clock, at_once(works))


@given(st.floats(1.0, 100.0), st.floats(1.0, 4.0), st.floats(0.0, 1.0), st.integers(1, 100))
def test_rest_hides_part_of_a_slowdown_and_never_adds_to_it(
    alone_ms: float, factor: float, shared: float, count: int
) -> None:
    beside_ms = alone_ms * (1.0 + (factor - 1.0) * shared)
    one = CoRun(CoRunner("a", 1, 50), (CoRunner("b", 1, 50),), alone_ms, beside_ms, shared, count)
    assert one.full_slowdown >= max(1.0, one.slowdown) - 1e-9
    if shared > 0.01:
        assert one.full_slowdown == pytest.approx(factor)
    assert len(observations([one])) == (shared >= 0.5 and count >= 5)


@given(st.integers(0, 12))
def test_groups(count: int) -> None:
    sides = [CoRunModel(make_model(str(number)), 1) for number in range(count)]
    assert len(pairs(sides)) == count * (count + 1) // 2
    threes = triples(sides)
    assert len(threes) == (count if count >= 3 else 0)
    for side in sides if threes else []:
        assert sum(side in three for three in threes) == 3
    assert all(len({side.model.name for side in three}) == 3 for three in threes)


def test_the_share_and_the_batch_of_a_measurement() -> None:
    assert (corun_share_pct(GPU, 2), corun_share_pct(GPU, 3)) == (50, None)
    points = {
        (batch, 50): LatencyPoint(batch, 2.0 * batch, 3.0 * batch, 9) for batch in (1, 2, 4, 8)
    }
    profile = Profile("m", "d", "k", 0, 0, points)
    assert batch_for(profile, 50, slo_ms=17.0) == 4
    assert batch_for(profile, 50, slo_ms=1.0) == 1
    assert batch_for(profile, 25, slo_ms=17.0) == 1


#: Whole ms, so that lengths are counted by counting cells.
times = st.integers(0, 60)
intervals = st.lists(
    st.tuples(times, st.integers(0, 12)).map(lambda pair: Interval(pair[0], pair[0] + pair[1])),
    max_size=8,
)
runs = intervals.filter(bool)


def cells(some: list[Interval]) -> set[int]:
    return {cell for one in some for cell in range(int(one.began_ms), int(one.ended_ms))}


@given(intervals)
def test_merged_is_the_same_time_in_pieces_that_do_not_touch(some: list[Interval]) -> None:
    found = merged(some)
    assert cells(found) == cells(some)
    assert total_ms(some) == len(cells(some))
    assert all(a.ended_ms < b.began_ms for a, b in pairwise(found))


@given(intervals, intervals)
def test_common_time_lies_in_both(some: list[Interval], others: list[Interval]) -> None:
    assert cells(common(some, others)) == cells(some) & cells(others)


@given(intervals, st.lists(intervals, max_size=3))
def test_overlap_is_the_counted_part(own: list[Interval], others: list[list[Interval]]) -> None:
    found = overlap(own, others)
    assert 0.0 <= found <= 1.0
    mine = cells(own)
    shared = mine.intersection(*(cells(one) for one in others))
    assert found == pytest.approx(len(shared) / len(mine) if mine else 0.0)


@given(runs, st.lists(intervals, max_size=2), intervals)
def test_one_more_neighbour_never_adds_overlap(
    own: list[Interval], others: list[list[Interval]], one: list[Interval]
) -> None:
    assert overlap(own, [*others, one]) <= overlap(own, others) + 1e-12


@given(st.lists(runs, min_size=1, max_size=3))
def test_all_had_begun_and_none_had_ended_in_the_window(some: list[list[Interval]]) -> None:
    ordered = [sorted(run, key=lambda one: one.ended_ms) for run in some]
    window = together(ordered)
    if window is None:
        return
    for run in ordered:
        assert run[0].began_ms <= window.began_ms < window.ended_ms <= run[-1].ended_ms
        for one in inside(run, window):
            assert window.began_ms <= one.began_ms <= one.ended_ms <= window.ended_ms


def test_who_never_ran_has_no_company() -> None:
    assert together([[Interval(0, 1)], []]) is None
    assert together([]) is None
    assert overlap([], [[Interval(0, 1)]]) == 0.0
