"""The comparisons of gpu-check through the contract of devices, on this machine's cores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from bench.fidelity.measured import half_pct, slowdowns
from bench.fidelity.stand import Stand, cores
from bench.gpu import changing, contracts, goodput, mechanisms, twin
from bench.gpu.bench import Bench
from bench.gpu.contestants import CONTESTANTS, Contestant, protecting, side_by_side
from bench.gpu.goodput import Race, Trial
from bench.gpu.opened import stand
from bench.gpu.rows import Row, Verdict
from bench.gpu.world import DRY_SLO_MS, cost_s, demand, kept_profiles, profiles_of
from interlace.core.hardware import Gpu
from interlace.core.plan import Demand
from interlace.measure.store import ProfileStore
from interlace.measure.sweep import Settings
from interlace.perf.bounds import area
from tests.builders import line_profile
from tests.contracts.stands import CpuStand
from tests.device.cuda.fake.backend import at_once

GPU = Gpu("g0", "test", 2, 10**9, (50, 100))
PROFILES = {m: line_profile(m, 2.0, 1.0, max_batch=8) for m in ("a", "b")}
QUICK = Settings(samples=5, samples_min=2, warm_ups=1, budget_s=0.02, retakes=0)


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
    assert area(asked, GPU, PROFILES).accelerators == pytest.approx(0.99)
    half = demand(PROFILES, GPU, 0.5)
    assert half[0].rate_rps == pytest.approx(asked[0].rate_rps / 2)


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


def test_a_search_ends_at_a_load_that_was_kept(tmp_path: Path) -> None:
    tried: list[float] = []

    async def search(opened: Stand) -> list[Row]:
        profiles = await profiles_of(bench(tmp_path), opened, QUICK)
        race, best = Race(profiles, 0.3, 2, DRY_SLO_MS), dict[str, Trial]()
        group = [one for one in CONTESTANTS if one.name in ("interlace", "streams")]
        rows = await gathered(goodput.contest(opened, race, group, best, bench(tmp_path)))
        tried.extend(trial.load for trial in best.values())
        return [*rows, *goodput.compared(best), await goodput.protected(opened, race)]

    rows = on_cores(tmp_path, search, "little", "middle")
    assert not [row for row in rows if row.verdict is Verdict.FAILED], rows
    assert len(tried) == 2
    assert rows[0].what == "goodput of interlace (green)"
    assert rows[-1].what.startswith("p99 of a protected model")
    for row in rows[:2]:
        assert len(row.figures["trials"]) == 2


def test_the_halving_goes_up_where_it_was_kept_and_down_where_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def trial(opened: object, race: Race, one: Contestant, load: float) -> Trial:
        return Trial(load, load * 100, load * 100, 1.0 if load < 0.5 else 0.9, 1.0)

    class Opened:
        class device:
            gpu = GPU

    monkeypatch.setattr(goodput, "trial", trial)
    found = asyncio.run(goodput.search(Opened(), Race(PROFILES, 1.0, 6), CONTESTANTS[0]))  # type: ignore[arg-type]
    assert max(t.load for t in found if t.kept) == pytest.approx(0.49, abs=0.03)


def test_shares_change_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    async def change(opened: Stand) -> list[Row]:
        found = await changing.changed(opened, 2, 0.1)
        assert len(found.took_ms) == 2
        assert found.around_ms
        return [*changing.told("cores", found), await changing.alone(opened, 4)]

    gap, _, lost, alone = on_cores(tmp_path, change, "little")
    assert lost.verdict is Verdict.AS_EXPECTED
    assert lost.figures["sent"] > 0
    assert len(gap.figures["gaps_us"]) >= 2
    assert alone.figures["turns_ms"] > 0


def test_a_staged_batch_is_measured_beside_a_gathered_one(tmp_path: Path) -> None:
    async def pool(opened: Stand) -> list[Row]:
        return [await mechanisms.pool(opened, 3)]

    (row,) = on_cores(tmp_path, pool, "little")
    assert row.figures["on_ms"] > 0
    assert row.figures["off_ms"] > 0


def test_mechanisms_on_bare_lanes_come_to_their_end(tmp_path: Path) -> None:
    made = bench(tmp_path)
    with made.backend() as backend:
        rows = [
            *mechanisms.gather(made, backend),
            *mechanisms.weights(made, backend),
            *mechanisms.together(made, backend),
        ]
    assert len(rows) == 3
    assert rows[1].figures["off_bytes"] == 4 * rows[1].figures["on_bytes"]


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
        store = ProfileStore(tmp_path / "profiles", print)
        store.save(profiles[model.key], model, opened.device.gpu, QUICK)
        assert kept_profiles(bench(tmp_path), [model]).keys() == {model.key}
        return []

    on_cores(tmp_path, keep, "little")


def test_the_contract_runs_without_a_test_runner(tmp_path: Path) -> None:
    found = contracts.tests()
    assert len(found) > 15
    test = found["test_several_models_share_a_partition_and_leave_it"]
    (held,) = contracts.held("what", CpuStand, test)
    assert held.verdict is Verdict.AS_EXPECTED

    def broken(stand: object) -> None:
        raise AssertionError("not so")

    (row,) = contracts.held("what", CpuStand, broken)
    assert row.verdict is Verdict.OTHER
    assert "not so" in row.found
