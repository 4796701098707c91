"""Every command of a benchmark that the documentation shows can be run as it stands there."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bench.harness.command import chosen, parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("bench/**/*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
    ROOT / "README.md",
]
COMMAND = re.compile(r"python -m (bench\.[\w.]+)((?:\\\n|[^`\n])*)")
#: In a shell's line these end what a command is given.
_ENDS = {">", "|", "#", "&&"}


def shown() -> Iterator[tuple[str, ...]]:
    """Module and arguments of every command, and of the figures that a table only numbers."""
    for page in PAGES:
        text = page.read_text()
        for module, rest in COMMAND.findall(text):
            words = shlex.split(rest.replace("\\\n", " "), comments=True)
            yield (module, *_until(words))
    table = (ROOT / "docs/papers.md").read_text()
    for paper, first, rest in re.findall(
        r"`python -m (bench\.papers\.\w+) ([a-z]+)\d+`([^|]*)\|", table
    ):
        kind = first
        for named, number in re.findall(r"`([a-z]*)(\d*)`", rest):
            kind = named or kind
            yield paper, f"{kind}{number}"


def _until(words: list[str]) -> list[str]:
    ends = [place for place, word in enumerate(words) if word in _ENDS]
    return words[: min(ends, default=len(words))]


def source(module: str) -> Path:
    """The file that runs as that module."""
    path = ROOT / module.replace(".", "/")
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def benchmarks(module: str) -> dict[str, Any]:
    """By name, the functions that a module gives to the harness; none if it is run otherwise."""
    for node in ast.walk(ast.parse(source(module).read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "main" and node.args:
            return dict(_function(module, ast.unparse(one)) for one in node.args)
    return {}


def _function(module: str, name: str) -> tuple[str, Any]:
    """A function of the module, or of one beside it: ``figures.figure4``."""
    folder, _, last = name.rpartition(".")
    return last, getattr(import_module(f"{module}.{folder}" if folder else module), last)


@cache
def help_of(module: str) -> str:
    """What a program says of itself."""
    argv = [sys.executable, "-m", module, "--help"]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("command", sorted(set(shown())), ids=" ".join)
def test_a_documented_command_takes_its_options(command: tuple[str, ...]) -> None:
    module, *arguments = command
    assert source(module).exists(), f"no such program: {module}"
    found = benchmarks(module)
    if not found:
        assert all(word in help_of(module) for word in arguments if word.startswith("--"))
        return
    one, rest = chosen(tuple(found.values()), arguments)
    parser(one).parse_args(rest)


def test_the_documentation_shows_commands() -> None:
    assert len(set(shown())) > 40
