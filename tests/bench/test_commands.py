"""Every command of a benchmark that the documentation shows can be run as it stands there."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from bench.harness.command import parser

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
    for paper, rest in re.findall(r"`python -m (bench\.papers\.\w+)\.\w+`([^|]*)\|", table):
        for number in re.findall(r"`(\w+)`", rest):
            name = number if not number.isdigit() else f"figure{number}"
            yield (
                (f"{paper}.{name}",) if _exists(f"{paper}.{name}") else (f"{paper}.table{number}",)
            )


def _until(words: list[str]) -> list[str]:
    ends = [place for place, word in enumerate(words) if word in _ENDS]
    return words[: min(ends, default=len(words))]


def _exists(module: str) -> bool:
    return (ROOT / f"{module.replace('.', '/')}.py").exists()


def benchmark(module: str) -> str | None:
    """The function that a module gives to the harness; none if it is run otherwise."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "main"
        ):
            return next((one.id for one in node.args if isinstance(one, ast.Name)), None)
    return None


@pytest.mark.parametrize("command", sorted(set(shown())), ids=" ".join)
def test_a_documented_command_takes_its_options(command: tuple[str, ...]) -> None:
    module, *arguments = command
    assert _exists(module), f"no such program: {module}"
    name = benchmark(module)
    if name is None:
        argv = [sys.executable, "-m", module, "--help"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert all(word in done.stdout for word in arguments if word.startswith("--"))
        return
    parser(getattr(import_module(module), name)).parse_args(arguments)


def test_the_documentation_shows_commands() -> None:
    assert len(set(shown())) > 40
