"""Planning and simulating need no library that runs models: they start where none is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = ("torch", "onnxruntime", "transformers", "safetensors", "cuda", "pynvml", "numba")
CODE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {libraries!r}:
            raise ImportError(f"{{name}} is not installed")

sys.meta_path.insert(0, Absent())
from interlace.cli.main import main

sys.exit(main())
"""
SCENARIO = """
gpu = "2080ti"
profiles = ["profiles.csv"]

[models.small]
rate_rps = 20
slo_ms = 100
"""


def interlace(folder: Path, *arguments: str) -> str:
    """What the command prints where those libraries cannot be imported."""
    command = [sys.executable, "-c", CODE.format(libraries=LIBRARIES), *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    rows = [f"small,{share},{batch},{4 + batch}" for share in (50, 100) for batch in (1, 4)]
    table = "\n".join(("model,share_pct,batch,latency_ms", *rows))
    (tmp_path / "profiles.csv").write_text(table + "\n")
    file = tmp_path / "one.toml"
    file.write_text(SCENARIO)
    return file


@pytest.mark.parametrize("command", ["", "plan", "simulate", "serve", "profile", "replay"])
def test_help(command: str, tmp_path: Path) -> None:
    assert "Usage" in interlace(tmp_path, *command.split(), "--help")


def test_a_scenario_is_planned_and_simulated(scenario: Path) -> None:
    folder = scenario.parent
    assert "1 2080ti" in interlace(folder, "plan", scenario.name)
    assert "small" in interlace(folder, "simulate", scenario.name, "--seconds", "2")
