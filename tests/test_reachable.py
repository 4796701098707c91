"""Every module of the package is reached from a command, or from what the package offers itself.

Reached means imported, wherever the import stands, or named in a string: processes are started and
formats opened by dotted names.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from interlace.cli.main import COMMANDS

PACKAGE = Path(__file__).parents[1] / "interlace"
#: Where walks begin: the command line with each command, the Python API, the laws for others.
ROOTS = (
    "interlace",
    "interlace.__main__",
    "interlace.cli.main",
    *(f"interlace.cli.{command.name}" for command in COMMANDS),
    *(f"interlace.testing.{file.stem}" for file in (PACKAGE / "testing").glob("*.py")),
)
DOTTED = re.compile(r"\binterlace(?:\.\w+)+")


@cache
def modules() -> dict[str, Path]:
    """Every module and package by dotted name."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = file
    return found


def names_in(file: Path) -> Iterator[str]:
    """Dotted names that a file imports or writes in strings; some are no modules."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Constant(value=str(text)):
                yield from DOTTED.findall(text)


def reached(roots: tuple[str, ...]) -> set[str]:
    """The modules that a walk comes to; a package's ``__init__`` runs before its parts."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        while name and name not in seen:
            if name in modules():
                seen.add(name)
                waiting += names_in(modules()[name])
            name = name.rpartition(".")[0]
    return seen


def test_every_module_is_reached() -> None:
    left = sorted(modules().keys() - reached(ROOTS))
    lines = [f"  {name}: {len(modules()[name].read_text().splitlines())} lines" for name in left]
    assert not left, "no command and no public name leads to:\n" + "\n".join(lines)


def test_the_walk_follows_strings_and_nothing_else() -> None:
    assert "interlace.formats.exported" in set(names_in(modules()["interlace.formats"]))
    assert reached(()) == set()
