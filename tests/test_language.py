"""Docs, docstrings and comments are plain: short sentences and table cells, no private words.

How to write is in CONTRIBUTING.md.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGE = ROOT / "interlace"
#: Folders of the package; "." are the modules beside them.
ROOMS = [".", *sorted(one.parent.name for one in PACKAGE.glob("*/__init__.py"))]
SENTENCE_WORDS_MAX = 35
CELL_CHARACTERS_MAX = 200
#: Words of a private English, each with the usual ones.
PRIVATE = {
    r"\b(?:is|are) (?:told|said|seen)\b": "is printed, is logged, receives",
    r"\bcomes? and goe?s?\b": "is swapped",
    r"\bof wh(?:ich|ose)\b": "two sentences",
    r"\bso (?:many|much) (?:of|for|at)\b": "the figure or its name",
    r"\b(?:who|what) (?:comes|is there|came)\b": "the noun",
    r"\baimed at\b": "a target, in the results alone",
}

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`*(\[]|$)")
#: Commands that help texts show after a line with the escape that keeps their lines apart.
SHOWN = re.compile(r"^\x08\n(?:.+\n?)+", re.MULTILINE)
#: Code after a line that ends in two colons.
CODE = re.compile(r"(?<=::)\n(?:\n+ +.*)+(?:\n +.*)*")
#: The start of an entry, such as of ``Raises:``.
ENTRY = re.compile(r"\n(?= +(?:\w+, )*\w+: )")


def prose(text: str) -> list[str]:
    """Sentences outside of code, tables and headings."""
    found = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", FENCE.sub("\n\n", text)):
        lines = [
            one for one in block.splitlines() if not one.lstrip().startswith(("|", "#", ":::"))
        ]
        found += END.split(" ".join(line.strip() for line in lines))
    return [one for one in found if one]


def cells(text: str) -> list[str]:
    rows = [one for one in FENCE.sub("", text).splitlines() if one.startswith("|")]
    return [cell.strip() for row in rows for cell in row.strip("|").split("|")]


def faults(text: str) -> list[str]:
    plain = re.sub(r"\]\([^)]*\)", "]", text)
    sentences, table = prose(plain), cells(plain)
    found = [
        f"{len(one.split())} words: {one[:80]} ..."
        for one in sentences
        if len(one.split()) > SENTENCE_WORDS_MAX
    ]
    found += [
        f"a cell of {len(one)}: {one[:80]} ..." for one in table if len(one) > CELL_CHARACTERS_MAX
    ]
    for pattern, better in PRIVATE.items():
        for one in [*sentences, *table]:
            found += [f"'{hit}', better: {better}" for hit in re.findall(pattern, one, re.I)]
    return found


def docstrings(source: str) -> Iterator[tuple[str, str]]:
    """The name and the prose of each module, class and function that has a docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = CODE.sub("", SHOWN.sub("", ast.get_docstring(node) or ""))
            yield getattr(node, "name", "module"), ENTRY.sub("\n\n", text)


def comments(source: str) -> Iterator[tuple[str, str]]:
    """Comments by line: those on lines in a row are one, one behind code is by itself."""
    lines: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        behind_code = bool(token.line[: token.start[1]].strip())
        if lines and (behind_code or token.start[0] != last + 1):
            yield f"line {first}", "\n".join(lines)
            lines = []
        text = token.string.lstrip("#: ")
        if behind_code:
            yield f"line {token.start[0]}", text
            continue
        first = first if lines else token.start[0]
        last = token.start[0]
        lines.append(text)
    if lines:
        yield f"line {first}", "\n".join(lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_plain(page: Path) -> None:
    found = faults(page.read_text())
    assert not found, "\n  ".join(["write it plainer:", *found])


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_and_comments_are_plain(room: str) -> None:
    found = []
    for path in sorted((PACKAGE / room).glob("*.py" if room == "." else "**/*.py")):
        source = path.read_text()
        for where, text in (*docstrings(source), *comments(source)):
            found += [f"{path.relative_to(ROOT)}: {where}: {fault}" for fault in faults(text)]
    assert not found, "\n  ".join(["write it plainer:", *found])


def test_each_kind_of_fault_is_found() -> None:
    assert faults("The caller receives the reason. A `x` is loaded.\n") == []
    assert len(faults("word " * 36 + ".\n")) == 1
    assert len(faults("|" + "x" * 201 + "|b|\n")) == 1
    assert len(faults("Who comes waits, and is told why.\n")) == 2
    assert faults("```\n" + "word " * 50 + "\n```\n") == []


def test_docstrings_are_read_without_commands_and_code() -> None:
    (found,) = docstrings(
        '"""It does.\n\n\b\nExamples:\n  a b\n\nRaises:\n    A: one.\n    B, C: two.\n\n'
        'Example::\n\n    code\n\n    more\n"""'
    )
    assert found == (
        "module",
        "It does.\n\n\nRaises:\n\n    A: one.\n\n    B, C: two.\n\nExample::",
    )


def test_comments_in_a_row_are_read_as_one() -> None:
    source = "a = 1  # one\nb = 2  # two\n# three\n# four\n\n# five\n"
    assert list(comments(source)) == [
        ("line 1", "one"),
        ("line 2", "two"),
        ("line 3", "three\nfour"),
        ("line 6", "five"),
    ]
