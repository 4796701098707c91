"""What the profiler finds of a GPU whose time depends on rows and SMs, and how little it opens."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from interlace.core.model import Model, ServiceTerms
from interlace.core.tensor import Signature
from interlace.device.cuda.green_contexts.atoms import green_settings
from interlace.profiling.profiler import MeasuredModel, profile_all
from interlace.profiling.rig import Rig as Driven
from interlace.profiling.sweep import SweepSettings
from interlace.runtime.clock import WallClock
from tests.device.cpu.rig import Rig
from tests.device.cuda.backends import NOTES, ROW_S
from tests.device.cuda.conftest import MakeRig
from tests.device.cuda.rig import FOUND
from tests.device.models import model

SETTINGS = SweepSettings(samples=3, samples_min=3, warm_ups=1, budget_s=0.01, retakes=0)
SHARES_PCT = (24, 48, 100)
#: 32, 64 and 132 of 132 SMs.
PART = {24: 32 / 132, 48: 64 / 132, 100: 1.0}
ROWS = (1, 2, 4)


@pytest.fixture
def rig(tmp_path: Path, make_rig: MakeRig) -> Rig:
    gpu = replace(green_settings(FOUND, "gpu0").gpu, shares_pct=SHARES_PCT)
    return make_rig(
        gpu=gpu,
        backend="tests.device.cuda.backends:proportional",
        opener="tests.device.cuda.torch_models:open_noted",
        environment=lambda share_pct: {
            "CUDA_VISIBLE_DEVICES": FOUND.uuid,
            NOTES: str(tmp_path / "notes"),
        },
    )


def small(name: str) -> Model:
    spec = model(name)
    signature = Signature(spec.signature.inputs, spec.signature.outputs, True, max(ROWS))
    return replace(spec, signature=signature, terms=ServiceTerms(10_000.0))


def measured(rig: Rig, *models: Model) -> list[MeasuredModel]:
    async def collect() -> list[MeasuredModel]:
        driven = Driven(rig.device, WallClock(asyncio.get_running_loop()), rig.arena)
        found = [one async for one in profile_all(driven, models, SETTINGS)]
        await driven.close()
        return found

    for one in models:
        rig.device.register(one)
    return rig.loop.run_until_complete(collect())


def test_latency_is_that_of_the_rows_at_every_share_and_a_model_is_opened_once(
    rig: Rig, tmp_path: Path
) -> None:
    (_, found, error, _), (_, _, other, _) = measured(rig, small("double"), small("late"))
    assert found is not None, error
    assert not other
    assert set(found.points) == {(rows, share) for rows in ROWS for share in SHARES_PCT}
    for (rows, share_pct), point in found.points.items():
        least_ms = 1000.0 * ROW_S * rows / PART[share_pct]
        assert least_ms <= point.gpu_ms <= point.median_ms
        assert point.median_ms < 1.5 * least_ms + 15.0, (rows, share_pct)
    noted = Counter((tmp_path / "notes").read_text().splitlines())
    assert noted["open double"] == noted["open late"] == 1
    assert noted["capture"] == 2 * len(ROWS) * len(SHARES_PCT)
