"""Docs are written plainly: short sentences, short table cells, no private words.

How to write is in CONTRIBUTING.md.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_plain(page: Path) -> None:
    found = faults(page.read_text())
    assert not found, "\n  ".join(["write it plainer:", *found])


def test_each_kind_of_fault_is_found() -> None:
    assert faults("The caller receives the reason. A `x` is loaded.\n") == []
    assert len(faults("word " * 36 + ".\n")) == 1
    assert len(faults("|" + "x" * 201 + "|b|\n")) == 1
    assert len(faults("Who comes waits, and is told why.\n")) == 2
    assert faults("```\n" + "word " * 50 + "\n```\n") == []
