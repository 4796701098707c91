"""The comparisons on the fake driver: how often models are opened, and without green contexts."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from bench.fidelity.stand import Ground
from bench.gpu import profiles
from bench.gpu.bench import Bench
from bench.gpu.contestants import OURS, PROCESSES, STREAMS, WHOLE
from bench.gpu.devices import board, maker, parted
from bench.gpu.goodput import LOADS, Contest, processes
from bench.gpu.opened import stand
from bench.gpu.rows import Row, Verdict, flow
from bench.gpu.search import Race, trial
from bench.gpu.switches import Switches, choose
from bench.gpu.world import DRY_SLO_MS, kept_profiles, profiles_of
from interlace.device.cuda.device import CudaDevice
from interlace.device.cuda.green_contexts.atoms import green_settings
from interlace.profiling.packaged import packaged_kinds
from interlace.profiling.sweep import SweepSettings, batch_sizes
from tests.device.cuda.backends import NOTES
from tests.device.cuda.fake.capture import at_once
from tests.device.cuda.rig import FOUND
from tests.device.cuda.warm import WarmLauncher

QUICK = SweepSettings(samples=3, samples_min=2, warm_ups=1, budget_s=0.02, retakes=0)
SHARES_PCT = (24, 48, 100)
NAMES = ("little", "middle")


def test_a_model_is_opened_once_for_profiles_and_all_trials(tmp_path: Path) -> None:
    def make(ground: Ground) -> CudaDevice:
        settings = green_settings(FOUND, "gpu0")
        settings = replace(
            settings,
            gpu=replace(settings.gpu, shares_pct=SHARES_PCT),
            backend="tests.device.cuda.backends:proportional",
            opener="tests.device.cuda.torch_models:open_noted",
            inputs=(ground.requests.number,),
            environment=lambda share_pct: {
                "CUDA_VISIBLE_DEVICES": FOUND.uuid,
                NOTES: str(tmp_path / "notes"),
            },
            keep_bytes=1 << 30,
        )
        return CudaDevice(ground.loop, ground.arenas, settings, WarmLauncher(ground.loop))

    def noted() -> Counter[str]:
        return Counter((tmp_path / "notes").read_text().splitlines())

    async def run() -> None:
        bench = Bench(True, tmp_path, time.monotonic() + 60.0, at_once)
        async with stand(bench, make, NAMES) as opened:
            known = await profiles_of(bench, opened, QUICK)
            sizes = len(batch_sizes(4, QUICK.factor))
            once = {f"open {name}": 1 for name in NAMES}
            assert noted() == {**once, "capture": len(NAMES) * len(SHARES_PCT) * sizes}
            race = Race(known, 0.2, 1, DRY_SLO_MS)
            for again in (False, True):
                before = noted()
                for one in (OURS, WHOLE[0], STREAMS[-1]):
                    found = await trial(opened, race, one, 0.3)
                    assert found.sent > 0
                if again:
                    assert noted() == before  # not even a capture
            assert {name: noted()[name] for name in once} == once

    asyncio.run(run())


def test_processes_race_at_the_loads_and_on_the_profiles_of_everyone_else(tmp_path: Path) -> None:
    bench = Bench(True, tmp_path, time.monotonic() + 60.0, at_once, models=NAMES)

    async def raced() -> dict[str, Row]:
        async with stand(bench, maker(bench, "green"), NAMES) as opened:
            race = Race(await profiles_of(bench, opened, QUICK), 0.2, 1, DRY_SLO_MS)
            contest = Contest(bench, opened, race, "green")
            await contest.at_loads((OURS,), LOADS[:1], until=1.0)
        group = PROCESSES["processes"]
        return {row.what: row async for row in processes(bench, contest, "processes", group)}

    found = asyncio.run(raced())
    assert found["goodput of time-sliced processes (processes)"].figures["trials"], found
    assert "in time at the same loads: interlace over time-sliced processes" in found


def test_profiles_that_are_kept_are_not_measured_again(tmp_path: Path) -> None:
    bench = Bench(True, tmp_path, time.monotonic() + 60.0, at_once)

    async def measured() -> list[str]:
        async with stand(bench, maker(bench, "green"), NAMES[:1]) as opened:
            offered = opened.rig.gpu
            found = [row.what async for row in profiles.measured(bench, opened)]
            assert opened.rig.gpu == offered
            assert kept_profiles(bench, opened.models()).keys() == opened.opened.keys()
            return found

    assert asyncio.run(measured()) == ["little"]
    assert asyncio.run(measured()) == []


def test_without_green_contexts_profiles_are_those_of_streams(tmp_path: Path) -> None:
    choose(tmp_path, True, Switches(lacking={"green": "cuDNN refuses their streams"}))
    bench = Bench(True, tmp_path, time.monotonic() + 60.0, at_once)
    assert parted(bench) == "streams"
    rows = list(flow(profiles.rows(bench)))
    assert rows
    assert not [row for row in rows if row.verdict in (Verdict.FAILED, Verdict.SKIPPED)]
    (kind,) = packaged_kinds(tmp_path / "profiles")
    assert kind == f"{board(bench).kind}-streams"
