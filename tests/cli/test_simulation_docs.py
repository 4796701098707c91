"""What docs/simulation.md shows works as it is written there."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from interlace.cli.main import build
from interlace.sim.report import Latency, ModelReport, Report
from interlace.sim.workload.parse import KEYS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulation.md").read_text()
WORKLOADS = (ROOT / "docs" / "workloads.md").read_text()
FENCES = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINES = "".join(FENCES).splitlines()
SIMULATIONS = [line for line in LINES if line.startswith("interlace simulate ")]
REPLAYS = [line for line in LINES if line.startswith("interlace replay ")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def ran(line: str, *more: str) -> str:
    words = [*shlex.split(line)[1:], *more]
    found = CliRunner().invoke(build(words), words)
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
    assert len(SIMULATIONS) >= 4


def test_every_key_is_named(here: Path) -> None:
    (run,) = json.loads(ran(quick(SIMULATIONS[0].partition(" --plot")[0]), "--json"))
    keys = {
        *run,
        *(field.name for kind in (Report, ModelReport, Latency) for field in fields(kind)),
    }
    missing = {key for key in keys if f"`{key}`" not in PAGE}
    assert not missing
    assert set(run["report"]) == {field.name for field in fields(Report)}


@pytest.mark.parametrize("kind", sorted(KEYS))
def test_every_workload_is_named(kind: str) -> None:
    assert f"`{kind}`" in WORKLOADS
    for key in KEYS[kind]:
        assert f"`{key}`" in WORKLOADS
