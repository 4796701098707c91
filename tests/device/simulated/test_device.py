"""The simulated accelerator: speeds, contention, copies, memory, mechanisms, faults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.hardware import Gpu
from interlace.core.messages import (
    CopyInputs,
    CreatePartition,
    Failure,
    Load,
    PartitionLost,
    Run,
    Work,
    WorkFinished,
)
from interlace.core.profile import Profile
from interlace.core.request import Batch, Request
from interlace.device.simulated.device import SimulatedDevice
from interlace.device.simulated.physics import (
    HostCost,
    HostLink,
    Jitter,
    Physics,
    RunningBatch,
    Transfer,
    equal_rows,
)
from interlace.device.simulated.running_batches import RunningBatches
from interlace.perf.interference import ConstantFactor, CoRunner
from interlace.perf.latency import surface
from interlace.runtime.clock import SimClock
from tests.builders import line_profile

GPU = Gpu("g0", "test", 2, 10**9, (50, 100))
PROFILES = {"a": line_profile("a"), "b": line_profile("b", 4.0, 2.0)}


class Bench:
    """A device in virtual time; ``ends`` has the time of every piece of work."""

    def __init__(
        self, physics: Physics | None = None, truth: Mapping[str, Profile] = PROFILES
    ) -> None:
        self.clock = SimClock()
        self.device = SimulatedDevice(GPU, self.clock, truth, physics=physics)
        self.ends: dict[Work, tuple[float, WorkFinished]] = {}
        self._batches = 0

    def do(self, work: Work) -> Work:
        self.device.do(work, lambda done: self.ends.setdefault(work, (self.clock.now_ms(), done)))
        return work

    def ready(self, *partitions: tuple[str, int, str]) -> None:
        for name, share_pct, model in partitions:
            self.do(CreatePartition("g0", name, share_pct))
            self.do(Load("g0", name, model))
        self.clock.run(self.clock.now_ms() + 60_000.0)

    def run(self, partition: str, model: str, rows: int, slot: int | None = None) -> Run:
        self._batches += 1
        members = tuple(Request(self._batches * 100 + i, model, 0.0, 1e9) for i in range(rows))
        batch = Batch(self._batches, model, members, rows, slot=slot)
        run = Run("g0", partition, batch)
        self.do(run)
        return run

    def took_ms(self, *runs: Run) -> list[float]:
        start_ms = self.clock.now_ms()
        self.clock.run(start_ms + 10_000.0)
        return [self.ends[run][0] - start_ms for run in runs]


def test_alone_a_batch_takes_exactly_its_profile() -> None:
    bench = Bench(Physics(interference=ConstantFactor(1.5)))
    bench.ready(("p", 50, "a"))
    assert bench.took_ms(bench.run("p", "a", 4)) == [pytest.approx(6.0)]


def test_workers_of_one_model_together_take_what_one_batch_of_all_rows_takes() -> None:
    """E2bird section 7.2: each row in flight has an equal part of the accelerator."""
    bench = Bench()
    bench.ready(("p", 100, "a"), ("q", 100, "a"))
    whole_ms = surface(PROFILES["a"], "median_ms").latency_ms(8, 100)
    taken_ms = bench.took_ms(bench.run("p", "a", 4), bench.run("q", "a", 4))
    assert taken_ms == [pytest.approx(whole_ms)] * 2


def test_copies_go_before_and_after_unless_the_inputs_lie_in_the_pool() -> None:
    link = HostLink(bytes_per_ms=1_000.0, start_ms=0.0)
    physics = Physics(link=link, transfers={"a": Transfer(1_000, 500)})
    bench = Bench(physics)
    bench.ready(("p", 50, "a"))
    assert bench.took_ms(bench.run("p", "a", 4)) == [pytest.approx(4.0 + 6.0 + 2.0)]
    assert bench.took_ms(bench.run("p", "a", 4, slot=0)) == [pytest.approx(6.0 + 2.0)]


def test_staging_goes_on_while_a_batch_runs() -> None:
    link = HostLink(bytes_per_ms=1_000.0, start_ms=0.0)
    bench = Bench(Physics(link=link, transfers={"a": Transfer(1_000, 0)}))
    bench.ready(("p", 50, "a"))
    start_ms = bench.clock.now_ms()
    run = bench.run("p", "a", 4, slot=0)
    stages = [bench.do(CopyInputs("g0", Request(i, "a", 0.0, 1e9), i, 8)) for i in range(4)]
    bench.clock.run(start_ms + 5.0)
    assert [bench.ends[one][0] - start_ms for one in stages] == [1.0, 2.0, 3.0, 4.0]
    assert run not in bench.ends


def test_gathering_on_the_host_costs_and_gpu_dma_saves_it() -> None:
    """Primitives paper, GPU-DMA: inputs are gathered by the device itself."""
    gathered = HostLink(1_000.0, 0.0, gather_bytes_per_ms=1_000.0)
    assert gathered.gathered_ms(4_000, 4) == pytest.approx(8.0)
    assert HostLink(1_000.0, 0.1).gathered_ms(4_000, 4) == pytest.approx(4.4)


def test_launches_and_blocking_synchronisations_go_one_after_the_other_on_one_thread() -> None:
    bench = Bench(Physics(host=HostCost(launch_ms=0.5, sync_ms=1.0)))
    bench.ready(("p", 50, "a"), ("q", 50, "a"))
    assert bench.took_ms(bench.run("p", "a", 4), bench.run("q", "a", 4)) == [
        pytest.approx(0.5 + 6.0 + 1.0),
        pytest.approx(0.5 + 6.0 + 1.0 + 1.0),  # the host wakes for p first
    ]


def test_a_load_without_room_says_how_much_there_is() -> None:
    large = {m: line_profile(m, weights_bytes=6 * 10**8) for m in ("a", "b")}
    bench = Bench(truth=large)
    bench.do(CreatePartition("g0", "p", 50))
    bench.do(Load("g0", "p", "a"))
    refused = bench.do(Load("g0", "p", "b"))
    bench.clock.run(1_000.0)
    failure = bench.ends[refused][1].failure
    assert failure is not None
    assert "needs 600000010 bytes, and 399999990 of 1000000000 are free" in failure.detail


def test_behind_walls_memory_is_a_partition_s_own() -> None:
    mig = replace(GPU_KINDS["a100-mig"], id="g0")
    large = {m: line_profile(m, weights_bytes=6 * 10**9) for m in ("a", "b")}
    clock = SimClock()
    device = SimulatedDevice(mig, clock, large)
    ends: dict[Work, WorkFinished] = {}
    seventh = mig.shares_pct[0]
    works = [CreatePartition("g0", "p", seventh), CreatePartition("g0", "q", seventh)]
    loads = [Load("g0", "p", "a"), Load("g0", "p", "b"), Load("g0", "q", "a")]
    for work in (*works, *loads):
        device.do(work, lambda done: ends.setdefault(done.work, done))
    clock.run(60_000.0)
    assert [ends[load].failure is None for load in loads] == [True, False, True]


def test_faults_on_demand() -> None:
    bench = Bench()
    bench.device.fail_next(Load, "bad file")
    bench.do(CreatePartition("g0", "p", 50))
    load = bench.do(Load("g0", "p", "a"))
    bench.clock.run(1_000.0)
    failure = bench.ends[load][1].failure
    assert failure is not None
    assert failure.detail == "bad file"
    refused = bench.run("p", "a", 1)
    bench.clock.run(2_000.0)
    assert bench.ends[refused][1].failure is not None


def test_a_fatal_failure_takes_its_partition_along() -> None:
    bench = Bench()
    bench.ready(("p", 50, "a"), ("q", 50, "a"))
    lost: list[PartitionLost] = []
    bench.device.on_event(lost.append)
    bench.device.fail_next(Run, Failure("illegal address", fatal=True))
    runs = [bench.run("p", "a", 4), bench.run("p", "a", 4)]
    other = bench.run("q", "a", 8)
    bench.clock.run(bench.clock.now_ms() + 100.0)
    assert [bench.ends[run][1].failure for run in runs] == [
        Failure("illegal address", fatal=True)
    ] * 2
    assert [one.partition for one in lost] == ["p"]
    assert bench.ends[other][1].failure is None
    assert set(bench.device.partitions) == {"q"}


def test_copies_of_one_partition_overlap_with_executions_of_another() -> None:
    """One engine a direction: copies wait for copies, not for executions."""
    physics = Physics(link=HostLink(1_000.0, 0.0), transfers={"a": Transfer(1_000, 0)})
    bench = Bench(physics)
    bench.ready(("p", 50, "a"), ("q", 50, "a"))
    # Four rows are copied in 4 ms and executed in 6: q's copy goes on while p executes.
    assert bench.took_ms(bench.run("p", "a", 4), bench.run("q", "a", 4)) == [
        pytest.approx(10.0),
        pytest.approx(14.0),
    ]


def test_a_stall_delays_what_runs_and_what_begins() -> None:
    bench = Bench()
    bench.ready(("p", 50, "a"), ("q", 50, "a"))
    start_ms = bench.clock.now_ms()
    first = bench.run("p", "a", 4)
    bench.clock.run(start_ms + 2.0)
    bench.device.stall(5.0)
    second = bench.run("q", "a", 4)
    bench.clock.run(start_ms + 100.0)
    assert bench.ends[first][0] - start_ms == pytest.approx(11.0)
    assert bench.ends[second][0] - start_ms == pytest.approx(13.0)


def test_jitter_repeats_with_its_seed() -> None:
    wide = {"a": _wide()}

    def times(seed: int) -> list[float]:
        bench = Bench(Physics(jitter=True, seed=seed), wide)
        bench.ready(("p", 50, "a"))
        return [bench.took_ms(bench.run("p", "a", 4))[0] for _ in range(5)]

    assert times(1) == times(1)
    assert times(1) != times(2)
    assert len(set(times(1))) == 5


def test_jitter_is_as_wide_as_the_profile_says() -> None:
    wide = {"a": _wide()}
    jitter = Jitter(wide, "1")
    factors = sorted(jitter.factor("a") for _ in range(20_000))
    assert factors[10_000] == pytest.approx(1.0, abs=0.005)
    assert factors[19_000] == pytest.approx(1.2, abs=0.01)
    assert factors[19_800] == pytest.approx(1.2 ** (2.3263 / 1.6449), abs=0.02)


def _wide() -> Profile:
    """Lognormal: the 99th percentile lies where the 95th says."""
    profile = line_profile("a")
    far = 1.2 ** (2.3263 / 1.6449)
    points = {
        key: replace(p, p95_ms=1.2 * p.median_ms, p99_ms=far * p.median_ms)
        for key, p in profile.points.items()
    }
    return replace(profile, points=points)


SURFACES = {
    "a": surface(line_profile("a"), "median_ms"),
    "b": surface(line_profile("b", 4.0, 2.0), "median_ms"),
}
#: (model, rows, share, ms since the one before began)
Batches = Sequence[tuple[str, int, int, float]]
BATCHES = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.integers(1, 16), st.sampled_from((50, 100)), st.floats(0.0, 12.0)
    ),
    min_size=1,
    max_size=7,
)


@dataclass(frozen=True, slots=True)
class ByRows:
    """Neighbours slow by their rows."""

    factor: float

    def __call__(self, runner: CoRunner, neighbours: Sequence[CoRunner]) -> float:
        return 1.0 + self.factor * sum(one.batch for one in neighbours)


def spans_ms(
    batches: Batches, factor: float, stall: tuple[float, float] | None = None
) -> list[tuple[float, float]]:
    """When each batch begins and ends."""
    clock = SimClock()
    progress = RunningBatches(clock, ByRows(factor) if factor else None, equal_rows)
    begins: list[float] = []
    ends: dict[int, float] = {}

    def begin(index: int) -> None:
        model, rows, share_pct, _ = batches[index]
        busy = RunningBatch(model, rows, share_pct, SURFACES[model])
        work_ms = busy.latency.latency_ms(rows, share_pct)
        begins.append(clock.now_ms())
        progress.begin(f"p{index}", busy, work_ms, lambda: ends.setdefault(index, clock.now_ms()))

    if stall is not None:
        clock.call_at(stall[0], lambda: progress.stall(stall[1]))
    at_ms = 0.0
    for index, (_, _, _, wait_ms) in enumerate(batches):
        at_ms += wait_ms
        clock.call_at(at_ms, lambda which=index: begin(which))
    clock.run(1e6)
    return [(begins[index], ends[index]) for index in range(len(batches))]


def work_done_ms(
    spans: Sequence[tuple[float, float]], batches: Batches, factor: float
) -> list[float]:
    """Speed times time, summed up from who ran beside whom: what each batch got."""
    done = [0.0] * len(batches)
    times = sorted({time for span in spans for time in span})
    for low, high in pairwise(times):
        there = [i for i, (begin, end) in enumerate(spans) if begin <= low and end >= high]
        busy = [RunningBatch(*batches[i][:3], SURFACES[batches[i][0]]) for i in there]
        over = sum(one.share_pct for one in busy) > 100
        speeds = equal_rows(busy) if over else [1.0] * len(busy)
        rows = sum(one.rows for one in busy)
        for i, one, speed in zip(there, busy, speeds, strict=True):
            done[i] += (high - low) * speed / (1.0 + factor * (rows - one.rows))
    return done


@given(batches=BATCHES, factor=st.sampled_from((0.0, 0.05)))
def test_every_batch_gets_the_work_it_asked_for(batches: Batches, factor: float) -> None:
    spans = spans_ms(batches, factor)
    works = [SURFACES[m].latency_ms(rows, share) for m, rows, share, _ in batches]
    assert work_done_ms(spans, batches, factor) == pytest.approx(works, abs=1e-6)


@given(batches=BATCHES)
def test_company_never_helps(batches: Batches) -> None:
    for (begin, end), (model, rows, share_pct, _) in zip(
        spans_ms(batches, 0.0), batches, strict=True
    ):
        assert end - begin >= SURFACES[model].latency_ms(rows, share_pct) - 1e-9


@given(batches=BATCHES, begins=st.floats(0.0, 30.0), lasts=st.floats(0.1, 20.0))
def test_a_stall_delays_all_by_its_length(batches: Batches, begins: float, lasts: float) -> None:
    """Batches that began before it end that much later, unless they had ended by then."""
    together = [(*batch[:3], 0.0) for batch in batches]
    calm = spans_ms(together, 0.0)
    stalled = spans_ms(together, 0.0, (begins, lasts))
    for (_, end), (_, later) in zip(calm, stalled, strict=True):
        if abs(end - begins) > 1e-6:
            assert later == pytest.approx(end + (lasts if end > begins else 0.0))
