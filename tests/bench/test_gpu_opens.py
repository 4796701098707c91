"""How often the comparisons open a model and capture a graph, counted on the fake driver."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from bench.fidelity.stand import Ground
from bench.gpu.bench import Bench
from bench.gpu.contestants import OURS, STREAMS, WHOLE
from bench.gpu.opened import stand
from bench.gpu.search import Race, trial
from bench.gpu.world import DRY_SLO_MS, profiles_of
from interlace.device.cuda.device import CudaDevice
from interlace.device.cuda.green import green_settings
from interlace.measure.sweep import Settings, batch_sizes
from tests.device.cuda.backends import NOTES
from tests.device.cuda.fake.backend import at_once
from tests.device.cuda.rig import FOUND
from tests.device.cuda.warm import WarmLauncher

QUICK = Settings(samples=3, samples_min=2, warm_ups=1, budget_s=0.02, retakes=0)
SHARES_PCT = (24, 48, 100)
NAMES = ("little", "middle")


def test_a_model_is_opened_once_for_profiles_and_all_trials(tmp_path: Path) -> None:
    def make(ground: Ground) -> CudaDevice:
        settings = green_settings(FOUND, "gpu0")
        settings = replace(
            settings,
            gpu=replace(settings.gpu, shares_pct=SHARES_PCT),
            backend="tests.device.cuda.backends:proportional",
            opener="tests.device.cuda.models:open_noted",
            completion="blocking",
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
            profiles = await profiles_of(bench, opened, QUICK)
            sizes = len(batch_sizes(4, QUICK.factor))
            once = {f"open {name}": 1 for name in NAMES}
            assert noted() == {**once, "capture": len(NAMES) * len(SHARES_PCT) * sizes}
            race = Race(profiles, 0.2, 1, DRY_SLO_MS)
            for again in (False, True):
                before = noted()
                for one in (OURS, WHOLE[1], STREAMS[-1]):
                    found = await trial(opened, race, one, 0.3)
                    assert found.sent > 0
                if again:
                    assert noted() == before  # not even a capture
            assert {name: noted()[name] for name in once} == once

    asyncio.run(run())
