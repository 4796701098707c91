"""A first start measures quickly; what it measured is measured again while the server is idle."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from interlace.control import refinement
from interlace.control.model_preparer import ModelPreparer
from interlace.control.refinement import ProfileRefinement
from interlace.control.registry import (
    UNLOADED,
    VersionEntry,
    VersionRegistry,
    VersionState,
)
from interlace.core.messages import (
    CreatePartition,
    Failure,
    ProfileMeasured,
    Run,
    Work,
    WorkFinished,
)
from interlace.core.model import Format, Model, TrustedModels
from interlace.core.profile import LayerProfile, Profile
from interlace.profiling.rig import Rig
from interlace.profiling.store import ProfileStore, joined
from interlace.profiling.sweep import QUICK, THOROUGH, no_progress
from interlace.runtime.clock import SimClock
from tests.profiling.fakes import GPU, FakeArena, FakeDevice, in_virtual_time, make_model

T = TypeVar("T")


class Stand:
    """A preparer on a device of cores that is made of a formula, after a first start."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.device = FakeDevice(SimClock())
        self.store = ProfileStore(folder)
        rig = Rig(cast(Any, self.device), self.device.clock, cast(Any, FakeArena()))
        self.preparer = ModelPreparer(
            folder, cast(Any, None), rig, self.store, TrustedModels.of("none")
        )
        self.models = [make_model(name) for name in names]
        self.do(self._start)

    def do(self, work: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            self.preparer._measuring = asyncio.Lock()  # of this run's loop
            return await work()

        return in_virtual_time(self.device.clock, run())

    async def _start(self) -> None:
        parts = self.preparer.profiles_by_parts(self.models, no_progress)
        found = joined([part async for part in parts])
        assert found.profiles.keys() == {model.key for model in self.models}

    def again(self, model: Model, idle: Callable[[], bool]) -> Profile | None:
        self.device.log.clear()
        return self.do(lambda: self.preparer.measure_again(model, idle))

    def carved(self) -> list[CreatePartition]:
        return [work for work in self.device.log if isinstance(work, CreatePartition)]

    def samples(self, model: Model) -> int:
        profile = self.store.find(model, GPU, QUICK)
        assert profile is not None
        return max(point.samples for point in profile.points.values())


def test_a_first_start_measures_quickly_and_says_what(tmp_path: Path) -> None:
    stand = Stand(tmp_path, "a", "b")
    assert stand.preparer.hasty.keys() == {model.key for model in stand.models}
    assert not any(work.background for work in stand.carved())
    assert all(stand.samples(model) <= QUICK.samples for model in stand.models)
    assert not stand.store.is_thorough(stand.models[0], GPU)
    assert stand.device.partitions == {}


def test_what_was_measured_in_haste_is_measured_again_by_workers_that_yield(tmp_path: Path) -> None:
    stand = Stand(tmp_path, "a", "b")
    model = stand.models[0]
    layers = (LayerProfile("conv", 10, 1.0, 1.0, 1.0),)
    hasty = stand.store.find(model, GPU, QUICK)
    assert hasty is not None
    stand.store.save(replace(hasty, layers=layers), model, GPU, QUICK)
    stand.device.slower = lambda run: 5.0  # what the start measured is not what counts
    found = stand.again(model, lambda: True)
    assert found is not None
    assert found.points[1, 100].median_ms == pytest.approx(hasty.points[1, 100].median_ms + 5.0)
    assert found.layers == layers
    assert stand.carved() and all(work.background for work in stand.carved())
    assert stand.store.is_thorough(model, GPU)
    assert stand.store.find(model, GPU, THOROUGH) == found
    assert stand.preparer.hasty.keys() == {stand.models[1].key}
    assert stand.device.partitions == {}


def test_a_second_start_measures_again_only_what_is_not_thorough(tmp_path: Path) -> None:
    first = Stand(tmp_path, "a", "b")
    first.again(first.models[0], lambda: True)
    second = Stand(tmp_path, "a", "b")
    assert second.device.log == []
    assert second.preparer.hasty.keys() == {second.models[1].key}


@pytest.mark.parametrize("points", [0, 1, 4])
def test_a_request_ends_it_and_the_model_stays_for_later(tmp_path: Path, points: int) -> None:
    stand = Stand(tmp_path, "a")
    (model,) = stand.models
    asked = iter([True] * points)
    assert stand.again(model, lambda: next(asked, False)) is None
    assert stand.preparer.hasty.keys() == {model.key}
    assert not stand.store.is_thorough(model, GPU)
    assert stand.device.partitions == {}


def test_a_model_that_is_loaded_is_not_kept_waiting(tmp_path: Path) -> None:
    stand = Stand(tmp_path, "a")
    (model,), other = stand.models, make_model("other")

    async def both() -> tuple[Profile | None, bool]:
        again = asyncio.ensure_future(stand.preparer.measure_again(model, lambda: True))
        while not stand.device.runs:
            await asyncio.sleep(0)
        loaded = await stand.preparer.profile_quickly(other)
        return await again, other.key in loaded.profiles

    stand.device.runs = 0
    assert stand.do(both) == (None, True)
    assert stand.preparer.hasty.keys() == {model.key, other.key}


def test_one_that_fails_this_time_is_served_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stand = Stand(tmp_path, "a")
    (model,) = stand.models

    def fail(work: Work) -> Failure | None:
        return Failure("no memory") if isinstance(work, Run) else None

    stand.device.fail = fail
    assert stand.again(model, lambda: True) is None
    assert stand.preparer.hasty == {}
    assert "a" in caplog.text and "no memory" in caplog.text


def refinement_of(
    stand: Stand,
    registry: VersionRegistry,
    heard: Callable[[ProfileMeasured], None],
    idle_s: Callable[[], float],
    load: Callable[[str], Awaitable[None]] | None = None,
) -> ProfileRefinement:
    device, loads = cast(Any, stand.device), cast(Any, load)
    return ProfileRefinement(stand.preparer, registry, device, loads, heard, idle_s)


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(refinement, "_LOOK_S", 0.001)
    yield


def test_an_idle_server_measures_all_of_them_and_plans_with_the_result(
    tmp_path: Path, quick_looks: None
) -> None:
    stand = Stand(tmp_path, "a", "b", "gone")
    registry, heard = VersionRegistry(), list[ProfileMeasured]()
    for model in stand.models[:2]:
        registry.put(VersionEntry(model.name, "1", VersionState.READY, model=model))
    idle_s = 0.0

    async def run() -> None:
        nonlocal idle_s
        task = asyncio.ensure_future(
            refinement_of(stand, registry, heard.append, lambda: idle_s).run()
        )
        await asyncio.sleep(0.05)
        assert heard == []  # requests come
        idle_s = 1.0
        while stand.preparer.hasty or len(heard) < 2:
            await asyncio.sleep(0)
        task.cancel()

    stand.do(run)
    assert [one.model for one in heard] == [model.key for model in stand.models[:2]]
    for one, model in zip(heard, stand.models, strict=False):
        assert one.profile == stand.store.find(model, GPU, THOROUGH)


def test_each_interruption_makes_it_wait_longer(
    tmp_path: Path, quick_looks: None, caplog: pytest.LogCaptureFixture
) -> None:
    stand = Stand(tmp_path, "a")
    registry = VersionRegistry()
    registry.put(VersionEntry("a", "1", VersionState.READY, model=stand.models[0]))
    begun: list[float] = []
    waited_s = 0.0

    def idle_s() -> float:
        """A request comes whenever a measurement has begun."""
        nonlocal waited_s
        if stand.preparer._measuring.locked():
            if waited_s:
                begun.append(waited_s)
            waited_s = 0.0
        else:
            waited_s += 0.5
        return waited_s

    async def run() -> None:
        made = refinement_of(stand, registry, lambda new: None, idle_s)
        task = asyncio.ensure_future(made.run())
        while len(begun) < 9:
            await asyncio.sleep(0)
        task.cancel()

    with caplog.at_level(logging.INFO):
        stand.do(run)
    assert begun[:5] == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0], abs=1.0)
    assert begun[-1] == pytest.approx(120.0, abs=2.0)
    assert caplog.text.count("measured again") == 1


def test_a_model_that_had_no_place_by_its_first_profile_is_loaded_by_the_next(
    tmp_path: Path, quick_looks: None
) -> None:
    stand = Stand(tmp_path, "slow", "unloaded")
    registry, loaded = VersionRegistry(), list[str]()
    registry.put(VersionEntry("slow", "1", VersionState.UNAVAILABLE, "it has no place"))
    registry.put(VersionEntry("unloaded", "1", VersionState.UNAVAILABLE, UNLOADED))

    async def load(name: str) -> None:
        assert stand.store.is_thorough(stand.models[0], GPU)
        loaded.append(name)

    async def run() -> None:
        made = refinement_of(stand, registry, lambda new: None, lambda: 1.0, load)
        task = asyncio.ensure_future(made.run())
        while stand.preparer.hasty:
            await asyncio.sleep(0)
        task.cancel()

    stand.do(run)
    assert loaded == ["slow"]


def test_work_that_ends_as_it_is_given_up_does_not_go_on(tmp_path: Path) -> None:
    """As when the device is closed in the same turn: ``asyncio.wait_for`` of 3.11 goes on."""
    stand = Stand(tmp_path, "a")
    ended: list[Callable[[], None]] = []

    def do(work: Work, done: Callable[[WorkFinished], None]) -> None:
        ended.append(lambda: done(WorkFinished(work)))

    async def run() -> None:
        stand.device.do = do  # type: ignore[method-assign]
        task = asyncio.ensure_future(stand.preparer._rig.partition(100, 60.0))
        await asyncio.sleep(0)
        task.cancel()
        ended[0]()
        with pytest.raises(asyncio.CancelledError):
            await task

    stand.do(run)


def test_code_is_not_run_again_for_it(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    stand.models = [replace(make_model("code"), format=Format.PYTHON)]
    stand.do(stand._start)
    assert stand.device.runs > 0
    assert stand.preparer.hasty == {}
