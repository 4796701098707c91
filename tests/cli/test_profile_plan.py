"""`interlace profile`, then `interlace plan`, on a repository of small ONNX models."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from interlace.cli import plan_scenario
from interlace.core.user_errors import InputError
from tests.cli.planning import Question, invoke


def write_model(folder: Path, settings: str) -> None:
    """y = x + x over rows of three."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", [value], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "1").mkdir(parents=True)
    onnx.save(model, str(folder / "1" / "model.onnx"))
    (folder / "interlace.toml").write_text(settings)


class World:
    """Two good models and a broken one, and a folder for profiles."""

    def __init__(self, folder: Path) -> None:
        self.models = folder / "models"
        self.profiles = folder / "profiles"
        write_model(self.models / "twice", "slo_ms = 200\nmax_batch = 2\n")
        write_model(self.models / "again", "slo_ms = 100\nmax_batch = 2\nrate_rps = 10\n")
        (self.models / "broken" / "1").mkdir(parents=True)
        (self.models / "broken" / "1" / "model.onnx").write_bytes(b"no graph")

    def command(self, name: str, *arguments: str) -> tuple[int, str, str]:
        result = invoke(name, self.models, "--profiles", self.profiles, *arguments)
        told = "" if result.exception is None else str(result.exception)
        return result.exit_code, result.stdout, result.stderr + told


def placed(report: dict[str, Any]) -> list[str]:
    """The models of the slots, in their order."""
    return [slot["model"] for part in report["partitions"] for slot in part["slots"]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    found = World(tmp_path_factory.mktemp("world"))
    words = ("--model", "twice", "--model", "again", "--cores", "0")
    code, _, errors = found.command("profile", *words)
    assert code == 0, errors
    yield found


def test_profiles_are_kept_and_shown(world: World) -> None:
    code, text, _ = world.command("profile", "--model", "twice", "--cores", "0")
    assert code == 0
    assert "1 of 1 were known" in text
    assert "median 100 %" in text
    assert len(list(world.profiles.glob("cpu-*/*.json"))) == 2


def test_json_has_every_point(world: World) -> None:
    code, text, _ = world.command("profile", "--model", "again", "--cores", "0", "--json")
    assert code == 0
    [entry] = json.loads(text)
    assert entry["model"] == "again"
    assert [(row["batch"], row["share_pct"]) for row in entry["points"]] == [(1, 100), (2, 100)]
    assert all(0 < row["median_ms"] <= row["p95_ms"] <= row["p99_ms"] for row in entry["points"])


def test_a_broken_model_is_named_and_keeps_no_other_from_being_measured(world: World) -> None:
    code, text, errors = world.command("profile", "--cores", "0")
    assert code == 1
    assert "twice" in text
    assert "broken" in errors
    assert "does not load" in errors
    assert "Traceback" not in errors


def test_a_model_without_a_profile_is_left_out_of_the_plan(world: World) -> None:
    code, text, errors = world.command("plan", "--cores", "0", "--rate", "broken=3")
    assert code == 3, errors
    said = f"left out: broken: no profile on this device; `interlace profile {world.models}`"
    assert said in text.replace("\n", " ") and "times as high" in text
    code, text, _ = world.command("plan", "--cores", "0", "--json")
    report = json.loads(text)
    assert code == 3 and len(report["left_out"]) == 1
    assert set(placed(report)) == {"twice", "again"}


def test_a_folder_without_any_profile_is_told_what_comes_first(
    world: World, tmp_path: Path
) -> None:
    result = invoke("plan", world.models, "--profiles", tmp_path, "--cores", "0")
    assert result.exit_code == 1
    assert f"`interlace profile {world.models}` measures it" in str(result.exception)


@pytest.mark.parametrize("option", ["--save", "--draw"])
def test_where_no_result_can_be_kept_nothing_is_planned(option: str) -> None:
    result = invoke("plan", "examples/planning/nine.toml", option, "/proc/plan.svg")
    assert isinstance(result.exception, InputError) and not result.stdout
    assert f"{option} /proc/plan.svg: found No such file or directory" in str(result.exception)


def test_a_plan_of_what_is_known(world: World, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("twice", "again"):
        (models / name).symlink_to(world.models / name)
    words = ["plan", models, "--profiles", world.profiles, "--cores", "0"]
    result = invoke(*words)
    assert result.exit_code == 0, result.stderr
    assert "times as high" in result.stdout
    words += ["--rate", "twice=9", "--slo", "twice=0.001", "--system", "gpulet", "--json"]
    report = json.loads(invoke(*words).stdout)
    assert placed(report) == ["again"]
    assert report["partitions"][0]["slots"][0]["rows_per_s"] >= 10
    assert report["models"]["again"]["sent"] > 0
    assert report["unserved_rows_per_s"] == {"twice": 9.0}
    assert "SLO" in report["reasons"]["twice"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "none"), "has no model 'none'; it has again, broken, twice"),
        (("--cores", "a"), "--cores a: expected core numbers such as 0-3,6"),
        (("--cores", "99999"), "no core 99999"),
    ],
)
def test_mistakes_are_one_sentence(world: World, arguments: tuple[str, str], message: str) -> None:
    code, _, errors = world.command("profile", *arguments)
    assert code == 1
    assert message in errors


def test_unknown_systems_and_rates_are_named(world: World) -> None:
    assert "did you mean gpulet?" in world.command("plan", "--cores", "0", "--system", "glet")[2]
    code, _, errors = world.command("plan", "--rate", "twice")
    assert code == 1
    assert "expected NAME=VALUE" in errors


def test_an_slo_that_nothing_meets_has_no_part_of_the_rates(world: World) -> None:
    words = ("--cores", "0", "--slo", "twice=0.0001", "--rate", "twice=1", "--rate", "again=1")
    code, told, _ = world.command("plan", *words)
    assert code == 3 and "not served: 1 requests/s of twice" in told
    assert "inf" not in told


@pytest.mark.parametrize("system", ["interlace", "gpulet", "nexus"])
def test_a_model_without_a_rate_is_unserved_only_without_a_place(world: World, system: str) -> None:
    words = ("--cores", "0", "--system", system, "--rate", "again=1e6", "--json")
    code, text, _ = world.command("plan", *words)
    report = json.loads(text)
    assert code == 3 and report["unserved_rows_per_s"]["again"] > 1e5
    has_place = "twice" in placed(report)
    assert report["unserved_rows_per_s"].get("twice") == (None if has_place else 0.0)
    assert ("twice" in report["reasons"]) is not has_place
    assert not any("requests/s of twice" in line for line in report["said"])


def test_no_repository_is_a_plain_error(tmp_path: Path) -> None:
    result = invoke("profile", tmp_path / "nowhere")
    assert result.exit_code == 1
    assert "nowhere" in str(result.exception)
    assert "expected a model repository" in str(result.exception)


def test_a_memory_budget_asks_for_layers_and_for_a_size(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, errors = world.command("plan", "--cores", "0", "--memory", "two apples")
    assert code == 1
    assert "--memory: 'two apples' is no number of bytes; expected a size such as 2GB" in errors
    monkeypatch.setattr(plan_scenario, "plan", lambda *_, **__: pytest.fail("it was planned first"))
    told = invoke("plan", Question(tmp_path).path, "--memory", "2GB").exception
    assert "no layers are known of small, large" in str(told)
