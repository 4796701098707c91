"""The sweep, on a device whose latencies are known."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.hardware import Fleet
from interlace.core.messages import (
    CreatePartition,
    Failure,
    Load,
    ReleasePartition,
    Run,
    Unload,
    Work,
)
from interlace.core.model import Format, Model
from interlace.core.plan import Demand, Plan
from interlace.core.profile import Profile
from interlace.core.tensor import Signature, TensorSpec
from interlace.perf.latency import doubtful, surface
from interlace.policy.base import Planner
from interlace.policy.planners.nested import Nested
from interlace.policy.planners.patterns import Patterns
from interlace.profiling.profiler import MeasuredModel, profile_all
from interlace.profiling.rig import MeasureError, Rig
from interlace.profiling.sweep import SweepSettings, SweepStep, batch_sizes, enough, point
from interlace.runtime.clock import SimClock
from tests.profiling.fakes import FakeArena, FakeDevice, in_virtual_time, latency_ms, make_model

SETTINGS = SweepSettings(
    samples=8, samples_min=3, warm_ups=1, budget_s=0.5, timeout_s=0.5, run_s=0.5
)


class Stand:
    """A fake device with everything that profiling needs."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.device = FakeDevice(self.clock)
        self.arena = FakeArena()
        self.steps: list[SweepStep] = []

    def profile(self, model: Model) -> Profile:
        (found,) = self.profile_all(model)
        if found.profile is None:
            raise MeasureError(found.error)
        return found.profile

    def profile_all(self, *models: Model) -> list[MeasuredModel]:
        async def collect() -> list[MeasuredModel]:
            rig = Rig(self.device, self.clock, self.arena)  # type: ignore[arg-type]
            found = [m async for m in profile_all(rig, models, SETTINGS, self.steps.append)]
            await rig.close()
            return found

        return in_virtual_time(self.clock, collect())


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_every_batch_and_share_is_measured_as_it_is(stand: Stand) -> None:
    found = stand.profile(make_model(max_batch=4))
    assert set(found.points) == {(b, s) for b in (1, 2, 4) for s in (50, 100)}
    for (batch, share_pct), kept in found.points.items():
        assert kept.median_ms == pytest.approx(latency_ms(batch, share_pct))
        assert kept.p99_ms == pytest.approx(latency_ms(batch, share_pct))
        assert SETTINGS.samples_min <= kept.samples <= SETTINGS.samples


def test_memory_load_time_and_overhead_are_kept(stand: Stand) -> None:
    found = stand.profile(make_model())
    assert found.weights_bytes == 1000
    assert found.activation_bytes == 40  # ready for batch 4
    assert found.load_ms == pytest.approx(30.0)
    assert found.overhead.total_ms == pytest.approx(0.5)  # the fake's phases leave half a ms out
    assert found.digest == "digest-of-cnn"
    assert found.gpu_kind == "cpu"


def test_memory_is_weighed_where_there_is_one_share_too(stand: Stand) -> None:
    stand.device.gpu = replace(stand.device.gpu, units=1, shares_pct=(100,))
    found = stand.profile(make_model())
    assert (found.weights_bytes, found.activation_bytes) == (1000, 40)
    assert {share for _, share in found.points} == {100}


def test_nothing_is_left_behind(stand: Stand) -> None:
    stand.profile(make_model())
    assert not stand.device.partitions
    assert not stand.device.loaded
    assert not stand.arena.blocks
    runs = [work for work in stand.device.log if isinstance(work, Run)]
    assert sorted(stand.device.freed) == sorted(work.batch.id for work in runs)


def test_batches_hold_single_row_requests_with_memory_of_their_own(stand: Stand) -> None:
    stand.profile(make_model(max_batch=4))
    largest = max(
        (work.batch for work in stand.device.log if isinstance(work, Run)), key=lambda b: b.rows
    )
    assert [request.rows for request in largest.requests] == [1, 1, 1, 1]
    assert len({request.inputs[0].span.offset for request in largest.requests}) == 4
    assert largest.requests[0].inputs[0].shape == (1, 5, 3)


def test_a_disturbed_point_is_taken_again(stand: Stand) -> None:
    # One warm-up, then a first take of eight runs: two of them are held up by a neighbour.
    stand.device.slower = lambda run: 50.0 if run in (3, 4) else 0.0
    found = stand.profile(make_model(max_batch=1)).points[1, 100]
    assert found.p99_ms == pytest.approx(latency_ms(1, 100))


def test_a_model_that_varies_by_nature_is_not_measured_for_ever(stand: Stand) -> None:
    stand.device.slower = lambda run: 50.0 if run % 3 == 0 else 0.0
    found = stand.profile(make_model(max_batch=1)).points[1, 100]
    assert found.p95_ms == pytest.approx(latency_ms(1, 100) + 50.0)
    assert found.median_ms == pytest.approx(latency_ms(1, 100))


def test_a_small_arena_is_enough(stand: Stand) -> None:
    stand.arena.limit = 2
    assert len(stand.profile(make_model(max_batch=8)).points) == 8


def test_a_full_arena_is_an_error(stand: Stand) -> None:
    stand.arena.limit = 0
    with pytest.raises(MeasureError, match="no room for one request of cnn"):
        stand.profile(make_model())


def test_larger_batches_are_left_out_once_no_plan_could_use_them(stand: Stand) -> None:
    found = stand.profile(make_model(max_batch=64, slo_ms=10.0))  # limit 40 ms
    assert max(batch for batch, share in found.points if share == 100) == 4
    assert max(batch for batch, share in found.points if share == 50) == 2
    assert stand.steps[0].total == 14
    assert stand.steps[-1].total == 10  # the four batches left out at a share of 100 are off it


def test_progress_ends_at_its_total_and_never_goes_back(stand: Stand) -> None:
    stand.profile_all(make_model("a"), make_model("b"))
    assert [step.done for step in stand.steps] == list(range(12))
    assert stand.steps[-1].total == 12
    assert all(step.left_s >= 0.0 for step in stand.steps)


def test_partitions_are_carved_once_for_all_models(stand: Stand) -> None:
    stand.profile_all(make_model("a"), make_model("b"))
    assert sum(isinstance(work, CreatePartition) for work in stand.device.log) == 2
    assert sum(isinstance(work, ReleasePartition) for work in stand.device.log) == 2


def fails(model: str, fatal: bool = False, detail: str = "out of memory") -> object:
    def judge(work: Work) -> Failure | None:
        if isinstance(work, Run) and work.batch.model.startswith(model) and work.batch.rows > 1:
            return Failure(detail, fatal)
        return None

    return judge


@pytest.mark.parametrize("fatal", [False, True])
def test_a_model_that_fails_is_named_and_the_next_is_measured(stand: Stand, fatal: bool) -> None:
    stand.device.fail = fails("bad", fatal)  # type: ignore[assignment]
    bad, good = stand.profile_all(make_model("bad"), make_model("good"))
    assert bad.profile is None
    assert bad.error == "bad: batch 2 at a share of 100 %: run failed: out of memory"
    assert good.profile is not None
    assert len(good.profile.points) == 6
    assert not stand.arena.blocks


@pytest.mark.parametrize("slo_ms", [100.0, 1000.0])
def test_code_that_takes_one_request_at_a_time_is_measured_with_one_and_guessed(
    stand: Stand, slo_ms: float
) -> None:
    stand.device.fail = fails("code", detail="one request, please")  # type: ignore[assignment]
    (found,) = stand.profile_all(replace(make_model("code", slo_ms=slo_ms), format=Format.PYTHON))
    assert found.error == "code: batch 2 at a share of 100 %: run failed: one request, please"
    assert found.profile is not None
    one, many = (found.profile.points[rows, 100] for rows in (1, 4))
    assert one.median_ms == pytest.approx(latency_ms(1, 100))
    assert many.median_ms == pytest.approx(max(0.05 * slo_ms, latency_ms(1, 100)))
    assert many.samples == 0
    assert surface(found.profile).latency_ms(1, 100) == pytest.approx(latency_ms(1, 100))


@pytest.mark.parametrize("planner", [Nested(), Patterns()])
def test_a_guessed_model_is_planned_with_full_batches(stand: Stand, planner: Planner) -> None:
    """A plan of single rows would never show what a batch takes. Gains below 5 % are not used."""
    stand.device.fail = lambda work: Failure("bad") if isinstance(work, Run) else None
    fleet = Fleet((stand.device.gpu,))
    for max_batch in range(1, 65):
        model = make_model(max_batch=max_batch)
        profile = stand.profile_all(model)[0].profile
        assert profile is not None
        demand = Demand(model.key, 1.0, model.terms.slo_ms, max_batch=max_batch)
        plan = planner([demand], fleet, {model.key: profile}, Plan())
        planned = {slot.batch for part in plan.partitions for slot in part.slots}
        assert planned and min(planned) >= max_batch / 1.05


def test_a_model_is_not_blamed_for_partitions_that_another_ended(stand: Stand) -> None:
    """Threads that a model leaves may end its process at any time; nothing tells of it."""
    dead: set[str] = set()

    def judge(work: Work) -> Failure | None:
        if isinstance(work, Unload) and work.model.startswith("bad"):
            dead.update(stand.device.partitions)
        if isinstance(work, Load) and work.partition in dead:
            return Failure(f"no partition '{work.partition}' on cpu0")
        return None

    stand.device.fail = judge
    bad, good = stand.profile_all(make_model("bad"), make_model("good"))
    assert bad.profile is None and "no partition" in bad.error
    assert good.profile is not None and len(good.profile.points) == 6


def test_values_that_break_a_model_are_replaced_by_plain_ones(stand: Stand) -> None:
    """Integers are 0 or 1 in a row of a sample; whoever divides by them needs ones."""
    spec = TensorSpec("x", "INT64", (3,))
    signature = Signature((spec,), (spec,), batched=True, max_batch=4)

    def by_zero(work: Work) -> Failure | None:
        if not isinstance(work, Run):
            return None
        blocks = [one.inputs[0].span for one in work.batch.requests]
        rows = [np.frombuffer(stand.arena.view(b.offset, b.nbytes), np.int64) for b in blocks]
        return None if all(row.all() for row in rows) else Failure("division by zero")

    stand.device.fail = by_zero
    found = stand.profile(replace(make_model(), signature=signature, sample={}))
    assert len(found.points) == 6 and not stand.arena.blocks


def test_a_hung_run_is_given_up_with_its_partition(stand: Stand) -> None:
    stand.device.fail = fails("bad", detail="hang")  # type: ignore[assignment]
    bad, good = stand.profile_all(make_model("bad"), make_model("good"))
    assert "did not end within 0.5 s" in bad.error
    assert good.profile is not None
    assert sum(isinstance(work, CreatePartition) for work in stand.device.log) == 3


def test_a_model_that_hangs_on_sample_values_has_a_guessed_profile(stand: Stand) -> None:
    stand.device.fail = lambda work: Failure("hang") if isinstance(work, Run) else None
    (found,) = stand.profile_all(make_model())
    assert "batch 1 at a share of 100 %: run did not end within 0.5 s" in found.error
    assert found.profile is not None and {batch for batch, _ in found.profile.points} == {1, 4}


def test_a_sweep_that_is_cancelled_waits_for_nothing_behind_a_hung_run(stand: Stand) -> None:
    stand.device.fail = lambda work: Failure("hang") if isinstance(work, Run) else None

    async def cancelled() -> None:
        rig = Rig(stand.device, stand.clock, stand.arena)  # type: ignore[arg-type]
        sweep = asyncio.ensure_future(anext(aiter(profile_all(rig, [make_model()], SETTINGS))))
        while not any(isinstance(work, Run) for work in stand.device.log):
            await asyncio.sleep(0.001)
        sweep.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sweep

    in_virtual_time(stand.clock, cancelled())
    assert not any(isinstance(work, Unload) for work in stand.device.log)


def test_a_model_that_does_not_load_is_an_error(stand: Stand) -> None:
    stand.device.fail = lambda work: (  # type: ignore[assignment]
        Failure("bad magic number") if isinstance(work, Load) else None
    )
    with pytest.raises(MeasureError, match="cnn: load failed: bad magic number"):
        stand.profile(make_model())


def test_a_device_without_room_for_two_partitions_gets_one_at_a_time(stand: Stand) -> None:
    def judge(work: Work) -> Failure | None:
        full = isinstance(work, CreatePartition) and stand.device.partitions
        return Failure("no units left") if full else None

    stand.device.fail = judge
    assert len(stand.profile(make_model(max_batch=4)).points) == 6


@given(st.integers(1, 500), st.integers(2, 8))
def test_batches_ascend_from_one_to_the_largest(max_batch: int, factor: int) -> None:
    sizes = batch_sizes(max_batch, factor)
    assert sizes[0] == 1
    assert sizes[-1] == max_batch
    assert list(sizes) == sorted(set(sizes))
    assert all(b <= a * factor for a, b in pairwise(sizes))


def test_a_point_ends_by_count_or_by_time_but_not_before_the_least() -> None:
    settings = SweepSettings(samples=10, samples_min=3, budget_s=1.0)
    assert not enough([1.0] * 2, 9.9, settings)
    assert enough([1.0], 10.0, settings) and not enough([], 0.0, settings)
    assert enough([1.0] * 3, 1.0, settings)
    assert not enough([1.0] * 9, 0.9, settings)
    assert enough([1.0] * 10, 0.0, settings)


def test_samples_that_agree_end_a_point_early() -> None:
    settings = SweepSettings(samples=100, samples_min=3, steady_samples=12, steady=1.1)
    assert not enough([1.0] * 11, 0.1, settings)
    assert enough([1.0] * 12, 0.1, settings)
    assert not enough([1.0] * 11 + [1.2], 0.1, settings)
    assert enough([1.0] * 30 + [1.2], 0.1, settings)  # one of 31 is no interference


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=300))
def test_quantiles_are_ordered_and_were_seen(latencies_ms: list[float]) -> None:
    found = point(latencies_ms)
    assert found.median_ms <= found.p95_ms <= found.p99_ms <= max(latencies_ms)
    assert {found.median_ms, found.p95_ms, found.p99_ms} <= set(latencies_ms)
    assert found.samples == len(latencies_ms)


def test_the_quantiles_of_a_hundred() -> None:
    found = point([float(i) for i in range(1, 101)])
    assert (found.median_ms, found.p95_ms, found.p99_ms) == (50.0, 95.0, 99.0)


def test_points_that_others_show_to_be_disturbed_are_taken_again(stand: Stand) -> None:
    """Every run on the whole device stalls until the smaller share is measured."""
    stand.device.slower = lambda run: 500.0 if 50 not in stand.device.partitions.values() else 0.0
    found = stand.profile(make_model(max_batch=4))
    for (batch, share_pct), kept in found.points.items():
        assert kept.median_ms == pytest.approx(latency_ms(batch, share_pct)), (batch, share_pct)
    assert not stand.device.loaded and not stand.device.partitions


def test_what_is_slow_whenever_it_is_measured_is_kept_and_in_doubt(stand: Stand) -> None:
    device = stand.device

    def slower(run: int) -> float:
        work = device.log[-1]
        assert isinstance(work, Run)
        return 500.0 if device.partitions[work.partition] == 100 else 0.0

    device.slower = slower
    found = stand.profile(make_model(max_batch=1))
    assert found.points[1, 100].median_ms == pytest.approx(500.0 + latency_ms(1, 100))
    assert doubtful(found.points).keys() == {(1, 100)}
