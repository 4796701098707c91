"""Without the extras: planning and simulation work, the rest says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NINE = str(Path(__file__).parents[2] / "examples" / "planning" / "nine.toml")
#: Every library of an extra, as if it were not installed.
BLOCK = """
import sys

NAMES = {"torch", "transformers", "onnxruntime", "safetensors", "uvloop", "httptools", "hpack",
         "matplotlib", "cuda", "pynvml", "numba", "hypothesis", "onnx", "PIL", "grpc",
         "tritonclient", "tokenizers", "psutil", "prometheus_client"}


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


sys.meta_path.insert(0, Missing())
"""
MAIN = "from interlace.cli.main import main; main()"
API = """
import interlace

found = interlace.plan(sys.argv[1])
assert found.gpus >= found.bound.gpus
played = interlace.simulate(sys.argv[1], seconds=1.0, gpus=found.gpus)
assert played.report.requests > 0
try:
    interlace.serve
except ModuleNotFoundError as error:
    print(error)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", BLOCK + code, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--help",), "simulate"),
        (("--version",), "interlace "),
        (("plan", NINE), "no scheduler needs fewer than"),
        (("simulate", NINE, "--seconds", "1"), "requests/s in time"),
        (("plan", "--help"), "--what-if"),
        (("bench", "--help"), "--rate"),
        (("top", "--help"), "--window"),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, tuple) else value,
)
def test_what_needs_no_extra(arguments: tuple[str, ...], said: str) -> None:
    done = run(MAIN, *arguments)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("serve", "models"), "serve"),
        (("profile", "models"), "serve"),
        (("plan", NINE, "--draw", "plan.svg"), "plots"),
        (("simulate", NINE, "--plot", "cdf=cdf.svg"), "plots"),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, tuple) else value,
)
def test_what_needs_one_says_which(arguments: tuple[str, ...], extra: str) -> None:
    done = run(MAIN, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert f"pip install 'interlace[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_api_plans_and_simulates() -> None:
    done = run(API, NINE)
    assert done.returncode == 0, done.stderr
    assert "pip install 'interlace[serve]'" in done.stdout
