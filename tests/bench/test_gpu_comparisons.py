"""The comparisons of gpu-check through the contract of devices, on this machine's cores."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.fidelity.measured import half_pct, slowdowns
from bench.fidelity.stand import Stand, cores
from bench.gpu import changing, goodput, isolation, search, twin
from bench.gpu.bench import Bench
from bench.gpu.contestants import (
    CONTESTANTS,
    OURS,
    STREAMS,
    WHOLE,
    Contestant,
    protecting,
    side_by_side,
)
from bench.gpu.devices import board
from bench.gpu.opened import stand
from bench.gpu.rows import Row, Verdict
from bench.gpu.search import Busy, Race, Search, Trial, at_one_load, in_time, reached
from bench.gpu.world import DRY_SLO_MS, cost_s, demand, kept_profiles, profiles_of
from interlace.core.hardware import Gpu
from interlace.core.messages import (
    Command,
    CreatePartition,
    Event,
    Failure,
    RequestArrived,
    Run,
    WorkFinished,
)
from interlace.core.plan import Demand
from interlace.core.request import Batch, Timing
from interlace.device.cuda.green_contexts.atoms import green_gpu
from interlace.packing.bounds import lower_bound
from interlace.policy.dispatchers.dynamic_batching import DynamicBatching
from interlace.profiling.store import ProfileStore
from interlace.profiling.sweep import SweepSettings
from tests.builders import line_profile
from tests.device.cuda.fake.capture import at_once

GPU = Gpu("g0", "test", 2, 10**9, (50, 100))
PROFILES = {m: line_profile(m, 2.0, 1.0, max_batch=8) for m in ("a", "b")}
QUICK = SweepSettings(samples=5, samples_min=2, warm_ups=1, budget_s=0.02, retakes=0)


def bench(out: Path) -> Bench:
    return Bench(True, out, time.monotonic() + 60.0, at_once)


def on_cores(out: Path, ask: Callable[[Stand], Awaitable[list[Row]]], *names: str) -> list[Row]:
    async def run() -> list[Row]:
        async with stand(bench(out), cores, names) as opened:
            return await ask(opened)

    return asyncio.run(run())


async def gathered(rows: AsyncIterator[Row]) -> list[Row]:
    return [row async for row in rows]


def test_a_load_of_one_is_what_the_area_bound_calls_full() -> None:
    asked = demand(PROFILES, GPU, 1.0)
    assert lower_bound(asked, GPU, PROFILES).area.accelerators == pytest.approx(0.99)
    half = demand(PROFILES, GPU, 0.5)
    assert half[0].rows_per_s == pytest.approx(asked[0].rows_per_s / 2)


def test_only_batches_in_time_count_as_cost() -> None:
    assert cost_s(PROFILES["a"], GPU, 1e9) < cost_s(PROFILES["a"], GPU, 3.5)
    with pytest.raises(ValueError, match="empty"):
        cost_s(PROFILES["a"], GPU, 0.1)


def test_streams_give_every_model_the_whole_and_protection_a_share() -> None:
    asked = [Demand(m, 10.0, 50.0, 4) for m in ("a", "b", "c")]
    plan = side_by_side(asked, GPU)
    assert [p.share_pct for p in plan.partitions] == [100] * 3
    assert plan.overlapping
    own, rest = protecting(asked, GPU, half_pct(GPU)).partitions
    assert [slot.model for slot in own.slots] == ["a"]
    assert [slot.model for slot in rest.slots] == ["b", "c"]
    assert (own.share_pct, rest.share_pct) == (50, 50)


def test_every_contestant_has_a_plan_that_hosts_every_model() -> None:
    asked = demand(PROFILES, GPU, 0.3)
    for one in CONTESTANTS:
        hosted = {s.model for p in one.plan(asked, GPU, PROFILES).partitions for s in p.slots}
        assert hosted == {"a", "b"}, one.name
    assert {one.name for one in CONTESTANTS} >= {"interlace", "temporal", "streams", "gpulet"}


def test_everyone_meets_the_same_loads_and_three_are_halved(tmp_path: Path) -> None:
    made = bench(tmp_path)

    async def compare(opened: Stand) -> list[Row]:
        profiles = await profiles_of(made, opened, QUICK)
        contest = goodput.Contest(made, opened, Race(profiles, 0.2, 1, DRY_SLO_MS), "green")
        kept = await isolation.protected(opened, contest.race, "green")
        return [*await gathered(contest.rows()), kept]

    rows = on_cores(tmp_path, compare, "little", "middle")
    assert not [row for row in rows if row.verdict is Verdict.FAILED], rows
    told = {row.what: row.figures for row in rows}
    for one in CONTESTANTS:
        figures = told[f"goodput of {one.name} (green)"]
        assert figures["trials"]
        assert figures["busy"] > 0
    assert any(what.startswith("interlace over the best whole-GPU system") for what in told)
    assert any(what.startswith("interlace over the best streams system") for what in told)
    assert "interlace over the area bound" in told
    assert told["in time at the same loads: interlace over Clockwork"]["ratios"]
    assert rows[-1].what.startswith("p99 of requests beside a full other half")
    by_arrivals = told["in time at 0.8, by arrivals: interlace over Clockwork"]
    assert len(by_arrivals.get("ratios")) == 2


def test_our_own_row_is_tried_at_every_load_whatever_happens_at_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    async def trial(
        opened: object, race: Race, one: Contestant, load: float, *others: object
    ) -> Trial:
        asked.append((one.name, load))
        if load == goodput.LOADS[0]:
            raise TimeoutError
        return Trial(load, 1.0, 1.0, 1.0, 1.0, sent=1000, late_ms=3.0)

    monkeypatch.setattr(search, "trial", trial)
    opened = Kept(monkeypatch, {})
    monkeypatch.setattr(search, "trial", trial)
    race = Race(PROFILES, 1.0, 1)
    contest = goodput.Contest(bench(tmp_path), opened, race, "green")  # type: ignore[arg-type]
    rows = asyncio.run(contest.at_loads((OURS, *WHOLE), goodput.LOADS[:2], until=1.0))
    assert ("interlace", goodput.LOADS[1]) in asked
    assert (WHOLE[0].name, goodput.LOADS[1]) not in asked
    told = {row.what: row for row in rows}
    assert "void: sent late" in told["goodput of interlace (green)"].found


class Kept:
    """A stand on which a system keeps every load below its own."""

    class device:
        gpu = GPU

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: dict[str, float]) -> None:
        async def trial(
            opened: object, race: Race, one: Contestant, load: float, *others: object
        ) -> Trial:
            rps = sum(asked.rows_per_s for asked in demand(PROFILES, GPU, load))
            worst = 1.0 if load < most[one.name] else 0.9
            return Trial(load, worst * rps, rps, worst, 1.0, sent=1000)

        monkeypatch.setattr(search, "trial", trial)

    def search(self, one: Contestant) -> Search:
        return Search(one, self, Race(PROFILES, 1.0, 6))  # type: ignore[arg-type]


def test_the_halving_goes_up_where_it_was_kept_and_down_where_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Kept(monkeypatch, {OURS.name: 0.5}).search(OURS)
    while not found.settled:
        asyncio.run(found.step())
    assert found.best.kept
    assert found.best.load == pytest.approx(0.49, abs=0.03)
    assert found.low < 0.5 <= found.high
    assert found.high <= 1.06 * found.low


def test_a_load_kept_by_luck_above_one_that_was_not_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Kept(monkeypatch, {OURS.name: 0.5}).search(OURS)
    for load in (0.4, 0.6):
        asyncio.run(found.at(load))
    found.trials.append(Trial(0.8, 80.0, 80.0, 1.0, 1.0))
    assert (found.low, found.high, found.best.load) == (0.4, 0.6, 0.4)


def test_a_ratio_lies_between_what_was_kept_and_what_was_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_ = Kept(monkeypatch, {OURS.name: 0.9, WHOLE[0].name: 0.45})
    ours, other = stand_.search(OURS), stand_.search(WHOLE[0])
    for one in (ours, other):
        while not one.settled:
            asyncio.run(one.step())
    ratio = reached(ours, other)
    assert ratio.low < 2.0 < ratio.high < 1.2 * ratio.low
    assert ratio.low <= ratio.value <= ratio.high
    rows = list(goodput.compared(ours, other, None))
    assert rows[0].verdict is Verdict.OTHER  # the interval is not wholly beyond the goal
    assert rows[0].figures["low"] == ratio.low
    assert (rows[1].figures["low"], rows[1].figures["high"]) == (ours.low, ours.high)


def test_what_was_never_kept_leaves_the_ratio_open_above(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ = Kept(monkeypatch, {OURS.name: 0.9, WHOLE[0].name: 0.0})
    ours, other = stand_.search(OURS), stand_.search(WHOLE[0])
    for load in (0.5, 0.8):
        asyncio.run(ours.at(load))
        asyncio.run(other.at(load))
    ratio = reached(ours, other)
    assert ratio.high == float("inf")
    assert 0 < ratio.low < float("inf")


def test_the_same_load_is_compared_with_how_far_chance_goes() -> None:
    good = Trial(0.8, 99.0, 100.0, 0.99, 1.0, sent=500)
    bad = Trial(0.8, 50.0, 100.0, 0.4, 1.0, sent=500)
    low, high = in_time(bad)
    assert low < 50.0 < high
    assert high - low == pytest.approx(2 * 4.4, rel=0.05)  # 1.96 x sqrt(0.25 / 500) of 100
    ratio = at_one_load(good, bad)
    assert ratio.value == pytest.approx(1.98)
    assert ratio.low < ratio.value < ratio.high
    assert in_time(replace(bad, sent=50_000))[0] > low


def test_no_garbage_is_collected_while_requests_are_sent(tmp_path: Path) -> None:
    collects: list[bool] = []

    def look(now_ms: float, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, RequestArrived):
            collects.append(gc.isenabled())

    async def run(opened: Stand) -> list[Row]:
        profiles = await profiles_of(bench(tmp_path), opened, QUICK)
        race = Race(profiles, 0.2, 1, DRY_SLO_MS)
        asked = demand(profiles, opened.device.gpu, 0.001, DRY_SLO_MS)
        plan = OURS.plan(asked, opened.device.gpu, profiles)
        await search.played(opened, race, OURS.system, plan, asked, 0.2, (look,))
        return []

    on_cores(tmp_path, run, "little")
    assert collects
    assert not any(collects)
    assert gc.isenabled()


def test_streams_may_have_two_instances_and_a_wait() -> None:
    asked = [Demand(m, 10.0, 50.0, 4) for m in ("a", "b")]
    (two,) = (one for one in STREAMS if one.name == "Triton-like")
    plan = two.plan(asked, GPU, PROFILES)
    assert len({p.id for p in plan.partitions}) == 4
    assert sum(s.rows_per_s for p in plan.partitions for s in p.slots) == pytest.approx(20.0)
    assert two.system.dispatcher == DynamicBatching(wait_ms=2.0)


def test_busy_is_the_graphs_time_by_its_share() -> None:
    busy = Busy(GPU)
    batch = Batch(1, "a", (), 1)
    for partition, share in (("half", 50), ("whole", 100)):
        busy(0.0, WorkFinished(CreatePartition("g0", partition, share)), ())
        ran = Timing(infer_ms=20.0, began_ns=5, ended_ns=10_000_005)
        busy(0.0, WorkFinished(Run("g0", partition, batch), timing=ran), ())
    busy(0.0, WorkFinished(Run("g0", "whole", batch), failure=Failure("x")), ())
    assert busy.part(0.1) == pytest.approx(0.15)


def test_the_bound_is_the_gpus_own_time_where_it_tells() -> None:
    slow = PROFILES["a"]
    told = replace(
        slow, points={key: replace(p, gpu_ms=p.median_ms / 2) for key, p in slow.points.items()}
    )
    assert cost_s(told, GPU, 1e9) == pytest.approx(cost_s(slow, GPU, 1e9) / 2)
    assert cost_s(told, GPU, 3.5) > cost_s(told, GPU, 1e9)  # in time is still what was seen


def test_shares_change_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    async def change(opened: Stand) -> list[Row]:
        found = await changing.changed(opened, 2, 0.1)
        assert len(found.took_ms) == 2
        assert found.around_ms
        return list(changing.told("cores", found))

    gap, _, lost = on_cores(tmp_path, change, "little")
    assert lost.verdict is Verdict.AS_EXPECTED
    assert lost.figures["sent"] > 0
    assert len(gap.figures["gaps_us"]) >= 2


def test_gaps_are_between_begin_and_end_whoever_runs() -> None:
    ran = [
        changing.Ran("p", 0.0, 10.0),
        changing.Ran("p", 10.01, 20.0),
        changing.Ran("q", 19.0, 25.0),  # beside the last one of the old partition
        changing.Ran("q", 25.5, 30.0),
        changing.Ran("p", 30.02, 31.0),
    ]
    usual, around = changing.gaps_ms(reversed(ran))
    assert usual == pytest.approx([0.01, 0.5])
    assert around == pytest.approx([0.0, 0.02])


def test_the_step_of_a_clock_is_found_in_what_it_says() -> None:
    told = [("p", 1_000_032, 1_000_064), ("p", 1_000_128, 1_000_288), ("q", 1_000_352, 1_000_512)]
    assert changing.clock_step_ns(told) == 32
    assert changing.clock_step_ns([("p", 0, 0), ("p", 0, 0)]) == 0
    found = changing.Changes([0.0], [0.02, 0.06], [1.0], 10, 0, 32)
    gap, _, _ = changing.told("green", found)
    assert gap.figures["gaps_us"] == [20.0, 60.0]
    assert gap.figures["step_ns"] == 32
    assert gap.verdict is not Verdict.AS_EXPECTED


def test_the_simulator_meets_the_device(tmp_path: Path) -> None:
    async def compare(opened: Stand) -> list[Row]:
        profiles = await profiles_of(bench(tmp_path), opened, QUICK)
        pairs = await slowdowns(opened, 0.02)
        return await gathered(twin.compared(bench(tmp_path), opened, profiles, pairs, 0.3))

    rows = on_cores(tmp_path, compare, "little", "middle")
    assert rows[-1].what == "ranking of systems"
    assert len(rows) == 1 + len(twin._SYSTEMS)
    assert {"goodput", "p99"} <= set(rows[0].figures)


def test_kept_profiles_are_those_of_the_same_files(tmp_path: Path) -> None:
    async def keep(opened: Stand) -> list[Row]:
        (model,) = opened.models()
        profiles = await profiles_of(bench(tmp_path), opened, QUICK)
        store = ProfileStore(tmp_path / "profiles")
        gpu = green_gpu(board(bench(tmp_path)), "gpu0")
        store.save(profiles[model.key], model, replace(gpu, kind="another"), QUICK)
        assert not kept_profiles(bench(tmp_path), [model])
        store.save(profiles[model.key], model, gpu, QUICK)
        assert kept_profiles(bench(tmp_path), [model]).keys() == {model.key}
        return []

    on_cores(tmp_path, keep, "little")
