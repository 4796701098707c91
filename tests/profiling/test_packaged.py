"""What comes with the package was measured; what was not is said to be missing."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from interlace.core.gpu_kinds import GPU_KINDS
from interlace.core.user_errors import InputError
from interlace.device.cuda.discovery import kind_of
from interlace.perf.interference import CoRunner
from interlace.planning.scenario import read_scenario
from interlace.profiling.corun import CoRun, corun_path, save_coruns
from interlace.profiling.packaged import FOLDER, NotMeasuredError, packaged, packaged_kinds
from interlace.profiling.profile_file import read_record
from interlace.profiling.store import ProfileStore
from interlace.profiling.sweep import THOROUGH
from tests.profiling.test_store import GPU, MODEL, PROFILE

BOARD = kind_of("NVIDIA H100 80GB HBM3", 85_520_809_984)


def test_what_was_measured_is_found_by_the_name_planners_know(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    store.save(replace(PROFILE, gpu_kind=BOARD), MODEL, replace(GPU, kind=BOARD), THOROUGH)
    pair = CoRun(CoRunner("cnn", 1, 50), (CoRunner("cnn", 1, 50),), 1.0, 1.5, 1.0, 9)
    save_coruns(corun_path(tmp_path, BOARD), BOARD, {"cnn": MODEL.digest}, [pair])
    found = packaged("h100", tmp_path)
    assert found == {"cnn": replace(PROFILE, model="cnn", gpu_kind="h100")}
    assert packaged(BOARD, tmp_path)["cnn"].points == PROFILE.points
    assert packaged_kinds(tmp_path) == (BOARD,)


def test_what_was_not_measured_is_said_and_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(
        NotMeasuredError, match=r"no profiles of h200 .* none were measured yet .*none"
    ):
        packaged("h200", tmp_path)
    (tmp_path / BOARD).mkdir()
    with pytest.raises(NotMeasuredError, match="scripts/gpu-check"):
        packaged("h100", tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / BOARD).mkdir()
    (tmp_path / BOARD / "cnn-1-abc.json").write_text("{}")
    with pytest.raises(ValueError, match=r"cnn-1-abc\.json: not a profile"):
        packaged("h100", tmp_path)


def test_every_packaged_file_says_when_and_on_what_it_was_measured() -> None:
    # Nothing may be here that no GPU wrote: each names its date, samples and board.
    for path in FOLDER.glob("*/*-*-*.json"):
        record = read_record(path.read_bytes())
        assert record.device.kind == path.parent.name
        assert record.method.date >= "2026-11"
        assert record.method.samples > 0
        assert all(row.samples > 0 and row.median_ms > 0 for row in record.points)


def test_they_are_part_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
    assert (
        "profiling/measured/**/*.json" in project["tool"]["setuptools"]["package-data"]["interlace"]
    )


def test_a_question_without_profiles_takes_those_of_the_package_or_says_there_are_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text('gpu = "p100"\n[models.resnet50]\nrate_rps = 10\nslo_ms = 50\n')
    assert "p100" in GPU_KINDS
    with pytest.raises(InputError, match=r"profiles: none are named.*no profiles of p100"):
        read_scenario(path)
