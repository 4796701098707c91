"""What docs/planning.md and docs/simulation.md show works as it is written there."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from interlace.sim.report import Latency, ModelReport, Report
from tests.cli.planning import invoke

ROOT = Path(__file__).parents[2]
PLANNING, SIMULATION = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("planning", "simulation")
)


def fenced(page: str, language: str, word: str = "") -> list[str]:
    """The blocks of a page in that language that hold a word."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [text for kind, text in found if kind == language and word in text]


LINES = "".join(fenced(PLANNING, "sh") + fenced(SIMULATION, "sh")).replace("\\\n", " ").splitlines()
PLANS = [
    line
    for line in LINES
    if line.startswith("interlace plan examples/") and "--compare" not in line
]
SIMULATIONS = [line for line in LINES if line.startswith("interlace simulate ")]
REPLAYS = [line for line in LINES if line.startswith("interlace replay ")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.parametrize(
    "line", [PLANS[0], *(pytest.param(line, marks=pytest.mark.long) for line in PLANS[1:])]
)
def test_plans_are_made(line: str, here: Path) -> None:
    words = [*shlex.split(line)[1:], "--system", "bestfit"]
    if "--current plan.json" in line:
        before = invoke(*words[:2], "--save", "plan.json", "--system", "bestfit")
        assert before.exit_code in (0, 3)
    found = invoke(*words)
    # Best fit is quick, and breaks promises under random arrivals.
    assert found.exit_code in (0, 3), found.stderr + str(found.exception)
    drawn = re.findall(r"--draw (\S+)", line)
    assert all((here / name).stat().st_size > 1000 for name in drawn)


def test_scenario_and_table_are_a_question(tmp_path: Path) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(fenced(PLANNING, "", "[models.detector]")[0])
    (tmp_path / "profiles.csv").write_text(fenced(PLANNING, "csv", "latency_ms")[0])
    found = invoke("plan", scenario)
    assert found.exit_code == 0, found.stderr + str(found.exception)
    assert "h100 (interlace" in found.stdout
    assert "not served" not in found.stdout


@pytest.mark.parametrize("column", ["p95_ms", "gpu_kind", "l2_util", "load_ms", "activation_mb"])
def test_columns_are_the_readers(column: str, tmp_path: Path) -> None:
    assert f"`{column}`" in PLANNING
    text = f"model,share_pct,batch,latency_ms,{column}\n"
    (tmp_path / "profiles.csv").write_text(text + "detector,100,1,2,\nranker,100,1,2,\n")
    scenario = tmp_path / "s.toml"
    scenario.write_text(fenced(PLANNING, "", "[models.detector]")[0])
    assert invoke("plan", scenario, "--system", "bestfit").exit_code in (0, 3)


def test_a_file_that_is_no_scenario_is_told(tmp_path: Path) -> None:
    found = invoke("plan", ROOT / "examples" / "planning" / "nine.csv")
    assert "expected a scenario (.toml), a folder of models, or with" in str(found.exception)
    missing = invoke("plan", tmp_path / "no.onnx", "--gpu", "l4")
    assert str(missing.exception) == f"{tmp_path / 'no.onnx'}: there is no such file"


def test_second_tenants_and_what_the_bound_leaves_out_are_told() -> None:
    words = ("plan", ROOT / "examples" / "planning" / "nine.toml", "--system", "bestfit")
    assert "le:100:4 more" in invoke(*words, "--what-if", "model=le:100:4").stdout
    said = invoke(*words, "--slo", "vgg=1").stdout
    assert "the bound leaves out what no share serves in time: vgg" in said
    assert "not served: 200 requests/s of vgg" in said


def ran(line: str, *more: str) -> str:
    found = invoke(*shlex.split(line)[1:], *more)
    assert found.exit_code == 0, found.stderr + str(found.exception)
    return found.stdout


def quick(line: str) -> str:
    """The same with less to simulate, and a planner that does not search."""
    line = re.sub(r"--seconds \d+", "--seconds 0.5", line).replace("interlace,", "bestfit,")
    return line if "--system" in line else f"{line} --system bestfit"


@pytest.mark.parametrize("line", SIMULATIONS)
def test_simulations_run(line: str, here: Path) -> None:
    ran(quick(line))
    drawn = re.findall(r"--plot \w+=(\S+)|--log (\S+)", line)
    assert all((here / (plot or log)).stat().st_size > 1000 for plot, log in drawn)


def test_replays_run(here: Path) -> None:
    (made,) = [line for line in SIMULATIONS if "--log run.log" in line]
    ran(made.replace("--seconds 3", "--seconds 1"))
    assert len(REPLAYS) >= 3
    told = [ran(line) for line in REPLAYS]
    assert "the replay gives the same commands at every event" in told[0]
    assert "to be answered by" in told[1]
    assert json.loads(told[2])["requests"] > 100


def test_there_are_commands() -> None:
    assert len(PLANS) >= 5 and len(SIMULATIONS) >= 4


def test_every_key_is_named(here: Path) -> None:
    (run,) = json.loads(ran(quick(SIMULATIONS[0].partition(" --plot")[0]), "--json"))
    keys = {
        *run,
        *(field.name for kind in (Report, ModelReport, Latency) for field in fields(kind)),
    }
    missing = {key for key in keys if f"`{key}`" not in SIMULATION}
    assert not missing
    assert set(run["report"]) == {field.name for field in fields(Report)}
