"""Profiles survive a restart; whatever is wrong with a file leads to measuring again."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest

from interlace.core.errors import Reason, ServeError
from interlace.core.messages import Failure, Load, Run, Work
from interlace.core.model import Description, Model, ServiceTerms
from interlace.core.profile import (
    LatencyPoint,
    LaunchOverhead,
    LayerProfile,
    MemoryContention,
    Profile,
)
from interlace.core.tensor import Signature, TensorSpec
from interlace.profiling import store as store_module
from interlace.profiling.rig import Rig
from interlace.profiling.store import (
    FillResult,
    ProfileStore,
    SignatureStore,
    fill,
    fill_by_parts,
)
from interlace.profiling.sweep import QUICK, THOROUGH, SweepSettings
from interlace.runtime.clock import SimClock
from tests.device.models import model
from tests.profiling.fakes import GPU, FakeArena, FakeDevice, in_virtual_time, make_model

MODEL = make_model()
PROFILE = Profile(
    model=MODEL.key,
    digest=MODEL.digest,
    gpu_kind=GPU.kind,
    weights_bytes=12345,
    activation_bytes=678,
    points={
        (batch, share): LatencyPoint(1.0 * batch, 2.0 * batch, 3.0 * batch, 99)
        for batch in (1, 2, 4)
        for share in GPU.shares_pct
    },
    overhead=LaunchOverhead(0.1, 0.2),
    load_ms=33.0,
)


class Stored:
    """A store with one profile in it, and what it warned of."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.store = ProfileStore(folder)
        self.store.save(PROFILE, MODEL, GPU, THOROUGH)
        self.path = self.store.path(MODEL, GPU)

    @property
    def warnings(self) -> list[str]:
        return self._caplog.messages


@pytest.fixture
def stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Stored:
    return Stored(tmp_path, caplog)


def test_what_was_saved_is_found(stored: Stored) -> None:
    assert stored.store.find(MODEL, GPU, THOROUGH) == PROFILE
    assert not stored.warnings


def test_what_is_known_beside_latency_is_kept_too(tmp_path: Path) -> None:
    full = replace(
        PROFILE,
        pressure={(1, 50): (0.25, 0.5), (4, 100): (0.0, 1.0)},
        layers=(
            LayerProfile("conv", 640, 0.5, 0.25, 1.5),
            LayerProfile("relu", 0, 0.0, 0.125, 0.125),
        ),
        strains={
            (1, 50): (
                MemoryContention("l2", 50, 0.5, 0.25, 1.125),
                MemoryContention("dram", 50, 0.5, 0.0, 1.0),
            )
        },
    )
    store = ProfileStore(tmp_path)
    store.save(full, MODEL, GPU, THOROUGH)
    assert store.find(MODEL, GPU, THOROUGH) == full


def test_files_from_when_power_was_measured_and_from_before_there_was_more_are_read(
    stored: Stored,
) -> None:
    record = json.loads(stored.path.read_text())
    draw = {"power_w": 350.5, "idle_w": 90.25, "rows_per_s": 1000.0}
    with_power = {**record, "more": [{"batch": 4, "share_pct": 100, "draw": draw}]}
    without_more = {key: record[key] for key in record.keys() - {"more", "layers"}}
    for older in (with_power, without_more):
        stored.path.write_text(json.dumps(older))
        assert stored.store.find(MODEL, GPU, THOROUGH) == PROFILE
        assert not stored.warnings


def test_it_is_found_under_the_key_of_today(stored: Stored) -> None:
    again = replace(MODEL, generation=4)
    found = stored.store.find(again, GPU, THOROUGH)
    assert found is not None
    assert found.model == again.key


def test_what_was_measured_in_haste_serves_until_there_is_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ProfileStore(tmp_path)
    store.save(PROFILE, MODEL, GPU, QUICK)
    assert store.find(MODEL, GPU, QUICK) == PROFILE
    assert store.find(MODEL, GPU, THOROUGH) is None
    assert "measured in haste" in caplog.messages[0]


def test_it_is_recalled_for_a_model_that_was_not_opened(stored: Stored) -> None:
    unopened = replace(MODEL, signature=Signature((), (), False, 0), sample={})
    recalled = stored.store.recall(unopened, GPU)
    assert recalled is not None
    assert recalled.profile == PROFILE
    assert recalled.max_batch == MODEL.signature.max_batch
    assert stored.store.recall(replace(MODEL, digest="another"), GPU) is None


def test_the_file_says_how_where_and_when(stored: Stored) -> None:
    record = json.loads(stored.path.read_text())
    assert record["device"]["kind"] == "cpu"
    assert record["device"]["processor"]
    assert record["method"]["libraries"]["numpy"]
    assert "warm-up" in record["method"]["description"]
    assert record["method"]["date"].startswith("20")
    assert len(record["points"]) == 6
    assert stored.path.read_text().count("\n") > 30  # for people


@pytest.mark.parametrize(
    "model",
    [replace(MODEL, digest="another"), replace(MODEL, version=2), replace(MODEL, name="a/../b")],
)
def test_another_model_is_another_file(stored: Stored, model: Model) -> None:
    path = stored.store.path(model, GPU)
    assert path != stored.path
    assert path.parent == stored.path.parent
    assert stored.store.find(model, GPU, THOROUGH) is None


@pytest.mark.parametrize(
    ("model", "gpu", "why"),
    [
        (MODEL, replace(GPU, units=4), "measured on cpu with 2 units"),
        (MODEL, replace(GPU, shares_pct=(25, 50, 100)), "shares that were not measured"),
        (replace(MODEL, sample={"x": (9, 3)}), GPU, "sample sizes changed"),
        (
            replace(MODEL, signature=replace(MODEL.signature, max_batch=8)),
            GPU,
            "measured up to batch 4, now 8",
        ),
    ],
)
def test_what_no_longer_holds_is_measured_again(
    stored: Stored, model: object, gpu: object, why: str
) -> None:
    assert stored.store.find(model, gpu, THOROUGH) is None  # type: ignore[arg-type]
    assert why in stored.warnings[0]
    assert str(stored.path) in stored.warnings[0]


def test_a_longer_slo_wants_the_batches_that_were_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ProfileStore(tmp_path)
    slow = replace(MODEL, terms=ServiceTerms(slo_ms=100_000.0))
    store.save(PROFILE, MODEL, GPU, THOROUGH)
    assert store.find(slow, GPU, THOROUGH) is not None  # the sweep was complete
    store.save(replace(PROFILE, points={(1, 50): LatencyPoint(1, 1, 1, 1)}), MODEL, GPU, THOROUGH)
    assert store.find(MODEL, GPU, THOROUGH) is not None
    assert store.find(slow, GPU, THOROUGH) is None
    assert "the SLO is longer now" in caplog.messages[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', "\x00\xff"])
def test_a_corrupt_file_is_named_and_measured_again(stored: Stored, text: str) -> None:
    stored.path.write_text(text)
    assert stored.store.find(MODEL, GPU, THOROUGH) is None
    assert str(stored.path) in stored.warnings[0]
    assert "not a profile" in stored.warnings[0]


def test_another_form_is_measured_again(stored: Stored) -> None:
    record = json.loads(stored.path.read_text())
    stored.path.write_text(json.dumps({**record, "schema": 99}))
    assert stored.store.find(MODEL, GPU, THOROUGH) is None
    assert "written in form 99" in stored.warnings[0]


def test_a_full_disk_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", full)
    stored = Stored(tmp_path, caplog)
    assert "could not be kept (No space left on device)" in stored.warnings[0]
    assert not stored.path.exists()
    assert not list(stored.path.parent.iterdir())  # no half file either


def test_a_folder_that_cannot_be_made_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    stored = Stored(blocked, caplog)
    assert len(stored.warnings) == 1
    assert stored.store.find(MODEL, GPU, THOROUGH) is None


SAID = Description(
    Signature((TensorSpec("x", "FP32", (-1, 3)),), (TensorSpec("y", "INT64", ()),), True, 7), "net"
)


def test_it_is_found_again_for_the_same_files_only(tmp_path: Path) -> None:
    known = model("double")
    SignatureStore(tmp_path).save(known, SAID)
    again = SignatureStore(tmp_path)
    assert again.find(known) == SAID
    assert again.find(replace(known, name="other", path="elsewhere")) == SAID
    assert again.find(replace(known, digest="changed")) is None
    assert again.find(replace(known, sample={"x": (5,)})) is None
    assert again.find(replace(known, signature=Signature((), (), False, 1))) is None


def test_what_cannot_be_read_or_kept_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, known = SignatureStore(tmp_path / "kept"), model("double")
    store.save(known, SAID)
    for file in (tmp_path / "kept").iterdir():
        file.write_bytes(b"{")
    assert store.find(known) is None
    (tmp_path / "file").write_text("no folder")
    SignatureStore(tmp_path / "file" / "below").save(known, SAID)
    assert "is not kept" in caplog.text


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
    assert found.measured == []
    assert runs(first) > 0
    assert second.log == []
    assert found.profiles.keys() == measured.profiles.keys()


def test_only_what_is_missing_is_measured(tmp_path: Path) -> None:
    start(tmp_path, "ab", FakeDevice(SimClock()))
    device = FakeDevice(SimClock())
    found = start(tmp_path, "abc", device)
    assert found.measured == [make_model("c").key]
    assert {work.model for work in device.log if isinstance(work, Load)} == {make_model("c").key}
    assert len(found.profiles) == 3


def test_what_is_stored_comes_first_and_then_what_is_measured(tmp_path: Path) -> None:
    start(tmp_path, "ab", FakeDevice(SimClock()))
    device = FakeDevice(SimClock())
    rig = Rig(device, device.clock, FakeArena())  # type: ignore[arg-type]
    models = [make_model(name) for name in "abcd"]

    async def parts() -> list[set[str]]:
        found = fill_by_parts(rig, models, ProfileStore(tmp_path), SETTINGS, part_s=0.0)
        return [{key[0] for key in part.profiles} async for part in found]

    assert in_virtual_time(device.clock, parts()) == [{"a", "b"}, {"c"}, {"d"}, set()]


def test_a_model_that_takes_long_lets_the_others_go_first_and_has_more_time_then(
    tmp_path: Path,
) -> None:
    device = FakeDevice(SimClock())
    slow = make_model("a")
    times: list[Run] = []

    def judge(work: Work) -> Failure | None:
        if isinstance(work, Run) and work.batch.model == slow.key:
            times.append(work)
            return Failure("hang") if len(times) == 1 else None
        return None

    device.fail = judge
    rig = Rig(device, device.clock, FakeArena())  # type: ignore[arg-type]
    settings = replace(SETTINGS, run_s=0.3, timeout_s=0.6)

    async def parts() -> list[tuple[set[str], bool]]:
        store = ProfileStore(tmp_path)
        found = fill_by_parts(rig, [slow, make_model("b")], store, settings, part_s=0.0)
        return [({k[0] for k in part.profiles}, bool(part.guessed)) async for part in found]

    told = in_virtual_time(device.clock, parts())
    assert told == [({"b"}, False), (set(), False), ({"a"}, False), (set(), False)]
    assert [round(work.limit_ms) for work in times[:2]] == [300, 600]


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
    assert start(tmp_path, "ab", FakeDevice(SimClock())).measured == [make_model("a").key]


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
        for known in models:
            assert found.profiles[known.key].model == known.key
            assert found.profiles[known.key].digest == known.digest
        first, second = (found.profiles[model.key] for model in models[:2])
        assert first.points == second.points


@pytest.mark.parametrize("failed", [Failure("bad crop"), ServeError(Reason.BACKEND, "bad crop")])
def test_a_model_that_fails_on_sample_values_has_a_guessed_profile(
    failed: Failure | ServeError, tmp_path: Path
) -> None:
    def judge(work: Work) -> Failure | ServeError | None:
        return failed if isinstance(work, Run) else None

    key = make_model("a").key
    found = start(tmp_path, "a", FakeDevice(SimClock(), fail=judge))
    assert found.failures == {}
    assert found.guessed == {key: "a: batch 1 at a share of 100 %: run failed: bad crop"}
    guessed = found.profiles[key]
    assert {share for _, share in guessed.points} == {50, 100}
    assert max(one.p99_ms for one in guessed.points.values()) < make_model("a").terms.slo_ms
    # It is not kept: the next start tries again.
    assert start(tmp_path, "a", FakeDevice(SimClock())).measured == [key]
