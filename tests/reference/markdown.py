"""Tables and texts of the generated pages."""

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ENTRY = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)$", re.MULTILINE)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown; bars in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"|{'|'.join(cell.replace('|', chr(92) + '|') for cell in row)}|" for row in lines]


def described(kind: type) -> dict[str, str]:
    """The entries under ``Keys:`` or ``Members:`` in the docstring of a class, by name.

    Read from the source: a compiled class has no docstring.
    """
    source = ROOT / f"{kind.__module__.replace('.', '/')}.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            text = ast.get_docstring(node) or ""
            return {name: " ".join(words.split()) for name, words in _ENTRY.findall(text)}
    raise AssertionError(f"{kind} is not in {source}")


def sentence(text: str) -> str:
    """The text with a capital letter, without a last full stop, with code as in Markdown."""
    text = text.replace("``", "`")
    text = text if text.endswith("..") else text.removesuffix(".")
    return text[:1].upper() + text[1:]
