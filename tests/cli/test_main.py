"""The command line as a whole: help is complete and quick to import, errors are plain."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from interlace.cli import main
from interlace.core.version import __version__

PRESENT = [
    command
    for command in main.COMMANDS
    if (Path(main.__file__).parent / f"{command.name}.py").is_file()
]


def test_help_names_every_command() -> None:
    text = CliRunner().invoke(main.build(["--help"]), ["--help"]).output
    for command in main.COMMANDS:
        assert command.name in text


@pytest.mark.parametrize("command", PRESENT, ids=lambda command: command.name)
def test_every_command_teaches_with_examples(command: main.Command) -> None:
    text = CliRunner().invoke(main.build([command.name]), [command.name, "--help"]).output
    assert "Examples:" in text
    assert f"  interlace {command.name} " in text


@pytest.mark.parametrize("command", PRESENT, ids=lambda command: command.name)
def test_the_line_in_the_list_is_the_first_of_the_help(command: main.Command) -> None:
    found = getattr(import_module(f"interlace.cli.{command.name}"), command.name)
    text = found.info.help if isinstance(found, typer.Typer) else found.__doc__
    assert text.splitlines()[0] == command.help


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments], capture_output=True, text=True, check=False
    )


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys; from interlace.cli.main import build; build(['--help']); "
        "heavy = {'torch', 'onnxruntime', 'transformers', 'grpc', 'numpy', 'uvloop'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert python("-c", probe).stdout.strip() == "[]"


def test_version_and_mistakes() -> None:
    start = "import sys; from interlace.cli.main import main; sys.argv[0] = 'interlace'; main()"
    version = python("-c", start, "--version").stdout.strip()
    assert version in {f"interlace {__version__} ({how})" for how in ("compiled", "pure Python")}
    assert python("-m", "interlace", "--version").stdout.strip() == version
    wrong = python("-c", start, "bench", "http://127.0.0.1:1", "x")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: no answer from http://127.0.0.1:1")
    assert "Traceback" not in wrong.stderr
    unknown = python("-c", start, "srve")
    assert unknown.returncode == 2
    assert "No such command 'srve'" in unknown.stderr
