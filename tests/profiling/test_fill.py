"""A second start finds the profiles; only what is missing is measured."""

from dataclasses import replace
from pathlib import Path

from interlace.core.messages import Failure, Load, Run, Work
from interlace.profiling.rig import Rig
from interlace.profiling.store import FillResult, ProfileStore, fill
from interlace.profiling.sweep import SweepSettings
from interlace.runtime.clock import SimClock
from tests.profiling.fakes import FakeArena, FakeDevice, in_virtual_time, make_model

SETTINGS = SweepSettings(samples=4, samples_min=2, warm_ups=1)


def start(folder: Path, names: str, device: FakeDevice, force: bool = False) -> FillResult:
    store = ProfileStore(folder)
    rig = Rig(device, device.clock, FakeArena())  # type: ignore[arg-type]
    work = fill(rig, [make_model(name) for name in names], store, SETTINGS, force=force)
    return in_virtual_time(device.clock, work)


def runs(device: FakeDevice) -> int:
    return sum(isinstance(work, Run) for work in device.log)


def test_a_second_start_runs_nothing(tmp_path: Path) -> None:
    first, second = FakeDevice(SimClock()), FakeDevice(SimClock())
    measured = start(tmp_path, "ab", first)
    found = start(tmp_path, "ab", second)
    assert len(measured.measured) == 2
    assert found.measured == ()
    assert runs(first) > 0
    assert second.log == []
    assert found.profiles.keys() == measured.profiles.keys()


def test_only_what_is_missing_is_measured(tmp_path: Path) -> None:
    start(tmp_path, "ab", FakeDevice(SimClock()))
    device = FakeDevice(SimClock())
    found = start(tmp_path, "abc", device)
    assert found.measured == (make_model("c").key,)
    assert {work.model for work in device.log if isinstance(work, Load)} == {make_model("c").key}
    assert len(found.profiles) == 3


def test_force_measures_everything_again(tmp_path: Path) -> None:
    start(tmp_path, "ab", FakeDevice(SimClock()))
    device = FakeDevice(SimClock())
    assert len(start(tmp_path, "ab", device, force=True).measured) == 2
    assert runs(device) > 0


def test_a_failure_is_kept_apart_and_not_stored(tmp_path: Path) -> None:
    def judge(work: Work) -> Failure | None:
        broken = isinstance(work, Load) and work.model.startswith("a")
        return Failure("truncated file") if broken else None

    found = start(tmp_path, "ab", FakeDevice(SimClock(), fail=judge))
    assert found.failures == {make_model("a").key: "a: load failed: truncated file"}
    assert list(found.profiles) == [make_model("b").key]
    assert start(tmp_path, "ab", FakeDevice(SimClock())).measured == (make_model("a").key,)


def test_of_one_architecture_one_is_measured(tmp_path: Path) -> None:
    """The one of the longest SLO, so that its profile goes far enough for all of them."""
    models = [replace(make_model(name), architecture="net") for name in "abc"]
    models[1] = replace(models[1], terms=replace(models[1].terms, slo_ms=10_000.0))
    models.append(make_model("other"))
    for expected in ({models[1].key, models[3].key}, set[str]()):
        device = FakeDevice(SimClock())
        rig = Rig(device, device.clock, FakeArena())  # type: ignore[arg-type]
        found = in_virtual_time(device.clock, fill(rig, models, ProfileStore(tmp_path), SETTINGS))
        assert set(found.measured) == expected
        assert found.profiles.keys() == {model.key for model in models}
        for model in models:
            assert found.profiles[model.key].model == model.key
            assert found.profiles[model.key].digest == model.digest
        first, second = (found.profiles[model.key] for model in models[:2])
        assert first.points == second.points


def test_a_model_that_fails_on_sample_values_has_a_guessed_profile(tmp_path: Path) -> None:
    def judge(work: Work) -> Failure | None:
        return Failure("bad crop") if isinstance(work, Run) else None

    key = make_model("a").key
    found = start(tmp_path, "a", FakeDevice(SimClock(), fail=judge))
    assert found.failures == {}
    assert found.guessed == {key: "a: batch 1 at a share of 100 %: run failed: bad crop"}
    guessed = found.profiles[key]
    assert {share for _, share in guessed.points} == {50, 100}
    assert max(one.p99_ms for one in guessed.points.values()) < make_model("a").terms.slo_ms
    # It is not kept: the next start tries again.
    assert start(tmp_path, "a", FakeDevice(SimClock())).measured == (key,)
