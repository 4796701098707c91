"""`interlace profile --layers --pressure --corun`, on devices that are not there."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from interlace.assembly.accelerators import Accelerators
from interlace.assembly.profiling_run import ExtraProfiling, check
from interlace.cli.profile import further_tables
from interlace.cli.screen import console
from interlace.core.hardware import Gpu
from interlace.core.model import Format, Model
from interlace.core.profile import LatencyPoint, Profile
from interlace.core.tensor import Signature, TensorSpec
from interlace.core.user_errors import UserError
from interlace.device.cpu.settings import CpuSettings
from interlace.device.cuda import streams
from interlace.device.cuda.green_contexts import atoms
from interlace.device.cuda.settings import CudaSettings
from interlace.profiling.corun import CoRun, corun_path, read_coruns
from interlace.profiling.extra_metrics import ExtraMetrics
from interlace.profiling.rig import Rig
from interlace.profiling.store import ProfileStore
from interlace.profiling.sweep import QUICK, THOROUGH
from interlace.runtime.clock import SimClock
from tests.profiling.cuda.test_bench import CODE
from tests.profiling.fakes import FakeArena, FakeDevice, in_virtual_time, make_model

CPU = CpuSettings((0,), 1 << 30)
GPU = Gpu("gpu0", "h100-sxm5-80gb", 132, 80 << 30, (24, 48, 72, 100))
SETTINGS = CudaSettings(GPU, "", atoms.LANES, "tests.device.cuda.fake.capture:at_once")


@dataclass
class World:
    """Two models with profiles on a fake device, and where everything is kept."""

    folder: Path
    models: list[Model] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = FakeDevice(SimClock(), GPU)
        self.store = ProfileStore(self.folder / "profiles")
        x, y = TensorSpec("x", "FP32", (4,)), TensorSpec("y", "FP32", (2,))
        for name in ("a", "b"):
            (self.folder / name).mkdir()
            (self.folder / name / "model.py").write_text(CODE)
            self.models.append(
                replace(
                    make_model(name),
                    path=str(self.folder / name),
                    format=Format.FACTORY,
                    signature=Signature((x,), (y,), True, 4),
                    sample={},
                )
            )
        self.profiles = {model.key: self.profile(model) for model in self.models}

    def profile(self, model: Model) -> Profile:
        points = {
            (b, s): LatencyPoint(1.0, 1.0, 1.0, 500) for b in (1, 2, 4) for s in GPU.shares_pct
        }
        return Profile(model.key, model.digest, GPU.kind, 1, 1, points)

    def measure(self, wanted: ExtraMetrics) -> list[CoRun]:
        rig = Rig(self.device, self.device.clock, FakeArena())  # type: ignore[arg-type]
        where = Accelerators(CPU, (SETTINGS,))
        further = ExtraProfiling(wanted, where, rig, self.store)

        async def whole() -> list[CoRun]:
            seen = await further.measure(self.models, self.profiles)
            self.said += further.failures
            await rig.close()
            return seen

        if wanted.layers:  # by a real process, in real time
            return asyncio.run(whole())
        return in_virtual_time(self.device.clock, whole())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_everything_is_measured_kept_and_shown(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for model, how in zip(world.models, (QUICK, THOROUGH), strict=True):
        world.store.save(world.profiles[model.key], model, GPU, how)
    seen = world.measure(ExtraMetrics(corun=True))
    assert world.measure(ExtraMetrics(layers=True)) == []
    assert world.said == []
    assert not world.device.partitions
    digests = {model.name: model.digest for model in world.models}
    assert len(read_coruns(corun_path(world.store.folder, GPU.kind), digests)) == len(seen) == 6
    for model in world.models:
        kept = world.store.find(model, GPU, QUICK)
        assert kept is not None and kept == world.profiles[model.key]
        assert [layer.name for layer in kept.layers][:3] == ["0", "1", "2"]
        assert kept.points == world.profile(model).points
    assert [world.store.is_thorough(model, GPU) for model in world.models] == [False, True]
    named = {model.name: world.profiles[model.key] for model in world.models}
    for table in further_tables(named, seen):
        console().print(table)
    text = capsys.readouterr().out
    assert "side by side" in text
    assert "cold starts" in text
    assert "L2 %" not in text


def test_what_is_not_wanted_is_not_measured(world: World) -> None:
    before = dict(world.profiles)
    assert world.measure(ExtraMetrics()) == []
    assert world.profiles == before
    assert world.device.log == []
    assert list(further_tables(before, [])) == []


@pytest.mark.parametrize(
    ("wanted", "where", "words"),
    [
        (ExtraMetrics(pressure=True), Accelerators(CPU), "these are cores"),
        (
            ExtraMetrics(pressure=True),
            Accelerators(CPU, (replace(SETTINGS, lanes=streams.LANES),)),
            "it takes --device green",
        ),
    ],
)
def test_what_cannot_be_had_is_an_error(
    wanted: ExtraMetrics, where: Accelerators, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        check(wanted, where)


def test_what_can_be_had_is_none() -> None:
    check(ExtraMetrics(layers=True, corun=True), Accelerators(CPU))
    check(ExtraMetrics(True, True, True), Accelerators(CPU, (SETTINGS,)))
