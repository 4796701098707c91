"""What docs/planning.md shows of planning works as it is written there."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from interlace.cli.main import build

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "planning.md").read_text()
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHELL = "".join(text for language, text in FENCES if language == "sh").replace("\\\n", " ")
COMMANDS = [
    line
    for line in SHELL.splitlines()
    if line.startswith("interlace plan examples/") and "--compare" not in line
]


def fenced(language: str, word: str) -> str:
    return next(text for kind, text in FENCES if kind == language and word in text)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = [*shlex.split(line)[1:], "--system", "bestfit"]
    if "--current plan.json" in line:
        before = [*words[:2], "--save", "plan.json", "--system", "bestfit"]
        assert CliRunner().invoke(build(before), before).exit_code in (0, 3)
    found = CliRunner().invoke(build(words), words)
    # Best fit is quick, and breaks promises under random arrivals.
    assert found.exit_code in (0, 3), found.stderr + str(found.exception)
    drawn = re.findall(r"--draw (\S+)", line)
    assert all((tmp_path / name).stat().st_size > 1000 for name in drawn)


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 5


def test_scenario_and_table_are_a_question(tmp_path: Path) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(fenced("", "[models.detector]"))
    (tmp_path / "profiles.csv").write_text(fenced("csv", "latency_ms"))
    words = ["plan", str(scenario)]
    found = CliRunner().invoke(build(words), words)
    assert found.exit_code == 0, found.stderr + str(found.exception)
    assert "h100 (interlace" in found.stdout
    assert "not served" not in found.stdout


@pytest.mark.parametrize("column", ["p95_ms", "gpu_kind", "l2_util", "load_ms", "activation_mb"])
def test_columns_are_the_readers(column: str, tmp_path: Path) -> None:
    assert f"`{column}`" in PAGE
    text = f"model,share_pct,batch,latency_ms,{column}\n"
    (tmp_path / "profiles.csv").write_text(text + "detector,100,1,2,\nranker,100,1,2,\n")
    scenario = tmp_path / "s.toml"
    scenario.write_text(fenced("", "[models.detector]"))
    words = ["plan", str(scenario), "--system", "bestfit"]
    assert CliRunner().invoke(build(words), words).exit_code in (0, 3)


def test_a_file_that_is_no_scenario_is_told(tmp_path: Path) -> None:
    words = ["plan", str(ROOT / "examples" / "planning" / "nine.csv")]
    found = CliRunner().invoke(build(words), words)
    assert "expected a scenario (.toml), a folder of models, or with" in str(found.exception)


def test_second_tenants_and_what_the_bound_leaves_out_are_told() -> None:
    words = ["plan", str(ROOT / "examples" / "planning" / "nine.toml"), "--system", "bestfit"]
    more = [*words, "--what-if", "model=le:100:4"]
    assert "le:100:4 more" in CliRunner().invoke(build(more), more).stdout
    late = [*words, "--slo", "vgg=1"]
    said = CliRunner().invoke(build(late), late).stdout
    assert "the bound leaves out what no share serves in time: vgg" in said
    assert "not served: 200 requests/s of vgg" in said
